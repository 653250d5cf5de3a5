"""The causal convolution in front of the delta rule, with SiLU, over the inputs of states."""

from __future__ import annotations

from typing import NamedTuple

from spaninfer_kernel_launch import (
    WITH_BFLOAT16,
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Int32,
    Int64,
    NamedCalls,
    Operator,
    Pointer,
    ShapeError,
    Signature,
    Step,
    Variant,
    check_dense,
    check_rows,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.delta_rule.slices import (
    SLICE_AXES,
    Slices,
    check_slices,
    check_states,
    source,
)
from spaninfer_kernels_cuda.delta_rule.tuning import (
    CHANNELS,
    CONVOLVED,
    THREADS,
    launch_convolution,
    vector,
)


class ConvolveArguments(NamedTuple):
    """Addresses, the arguments of convolve."""

    out: Pointer
    x: Pointer
    weight: Pointer
    inputs: Pointer
    table_rows: Pointer
    seq_lens: Pointer
    query_start_loc: Pointer
    tables: Pointer


class ConvolveSizes(NamedTuple):
    """Elements from row to row, table row to table row, span to span; and numbers of things."""

    x_stride: Int64
    table_stride: Int64
    span_stride: Int64
    span_len: Int32
    channels: Int32
    num_slices: Int32
    num_decodes: Int32


CONVOLVE = Signature("convolve", ConvolveArguments, ConvolveSizes)
SOURCE = source("convolve.cu", kernels=(CONVOLVE,))


class PreparedConvolution(NamedTuple):
    """A convolution of one size."""

    call: Call[ConvolveArguments] | None

    def start(self, handle: int, arguments: ConvolveArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(channels: int, taps: int, dtype: object) -> Variant:
    """Return the variant for channels of `dtype` (16-bit floats) and 2 or 4 taps."""
    if taps not in (2, 4):
        raise ShapeError(f"weight: {taps} taps, but the kernel takes 2 or 4")
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "TAPS": taps,
        "VECTOR": vector(channels, most=CHANNELS),
        "TOKENS": CONVOLVED,
        "THREADS": THREADS,
    }
    return Variant.of("convolve", SOURCE, macros, WITH_BFLOAT16)


def prepare(
    sizes: ConvolveSizes,
    *,
    rows: int,
    taps: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedConvolution:
    """Return the convolution of x[rows channels] on `gpu`, compiled or cached."""
    compiled = compile_variant(
        variant_for(sizes.channels, taps, dtype), gpu.arch, cache or user_cache()
    )
    if not rows:
        return PreparedConvolution(None)
    width = vector(sizes.channels, most=CHANNELS)
    grid = launch_convolution(rows, sizes.channels, width, sizes.num_slices, sizes.num_decodes)
    return PreparedConvolution(Call(load(compiled, gpu, CONVOLVE), grid, sizes))


def convolve(
    x: object,
    weight: object,
    inputs: object,
    slices: Slices,
    *,
    out: object = None,
    stream: object = None,
) -> object:
    """Return SiLU of the causal convolution of x[T C] by weight[C n], and update inputs[S n-1 C].

    The inputs that a layer keeps of its sequences are float32; their spans may lie apart. Without
    `out`, the result [T C] is a new array.
    """
    arrays = x, weight, inputs, *slices.arrays, out
    new = _convolve.start((slices.span_len, slices.num_decodes), arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(options: tuple[int, int], given: dict[str, ArraySpec]) -> Step:
    """Return the convolution of arrays with these specs; options are sizes of the slices."""
    span_len, num_decodes = options
    views = {name: view_at(spec) for name, spec in given.items() if name != "out"}
    x = views["x"]
    rows, channels, taps = match(x=(x, "T C"), weight=(views["weight"], "C n")).values()
    check_dense(x.dtype, weight=views["weight"])
    width = vector(channels, most=CHANNELS) * x.dtype.itemsize
    check_rows(x.dtype, width, x=x)
    sizes = ConvolveSizes(
        x_stride=x.strides[0],
        table_stride=views["tables"].strides[0],
        span_stride=check_states("inputs", views["inputs"], (taps - 1, channels)),
        span_len=span_len,
        channels=channels,
        num_slices=check_slices(views, num_decodes),
        num_decodes=num_decodes,
    )
    gpu = gpu_of(**views)
    convolution = prepare(sizes, rows=rows, taps=taps, dtype=x.dtype, gpu=gpu)
    new = new_results(given, gpu, ("out", (rows, channels), x.dtype, width))
    return Step(gpu, NamedCalls.of(convolution.call), new)


_convolve = Operator(f"x weight inputs {' '.join(SLICE_AXES)} out", _prepare_call)
