"""The RMS norm of heads, times SiLU of a gate: what follows the delta rule."""

from __future__ import annotations

from typing import NamedTuple

from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Float32,
    Gpu,
    Int32,
    Int64,
    NamedCalls,
    Operator,
    Pointer,
    Signature,
    Source,
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

from spaninfer_kernels_cuda.delta_rule.tuning import THREADS, launch_norm, norm_tile


class GatedNormArguments(NamedTuple):
    """Arguments of gated_norm."""

    out: Pointer
    x: Pointer
    z: Pointer
    weight: Pointer
    eps: Float32
    weight_offset: Float32


class GatedNormSizes(NamedTuple):
    """Elements of z from row to row; heads of a row; rows."""

    z_stride: Int64
    heads: Int32
    rows: Int32


GATED_NORM = Signature("gated_norm", GatedNormArguments, GatedNormSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "delta_rule/norm.cu",
    headers=("types.cuh", "overlap.cuh", "math.cuh", "reduce.cuh"),
    kernels=(GATED_NORM,),
)


class PreparedGatedNorm(NamedTuple):
    """A gated norm of one size."""

    call: Call[GatedNormArguments] | None

    def start(self, handle: int, arguments: GatedNormArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(value_size: int, dtype: object) -> Variant:
    """Return the variant for heads of `dtype` (float32, 16-bit floats)."""
    element, tile = element_of(dtype), norm_tile(value_size)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "VALUE": value_size,
        "VECTOR": tile.vector,
        "LANES": tile.lanes,
        "PACKS": tile.packs,
        "THREADS": THREADS,
    }
    return Variant.of("gated_norm", SOURCE, macros, element.architectures)


def prepare(
    sizes: GatedNormSizes,
    *,
    value_size: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedGatedNorm:
    """Return the gated norm of x[rows heads value_size] on `gpu`, compiled or cached."""
    compiled = compile_variant(variant_for(value_size, dtype), gpu.arch, cache or user_cache())
    grid = launch_norm(sizes.rows, sizes.heads, norm_tile(value_size))
    return PreparedGatedNorm(Call(load(compiled, gpu, GATED_NORM), grid, sizes) if grid else None)


def gated_rms_norm(
    x: object,
    z: object,
    weight: object,
    *,
    eps: float,
    plus_one: bool = False,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[T H E] over the root mean square of each head, times weight[E] and silu(z[T H E]).

    With `plus_one`, times 1 + weight. Without `out`, the result is a new array; it may be x.
    """
    new = _gated_norm.start(None, (x, z, weight, out), (eps, plus_one), stream)
    return new[0] if out is None else out


def _prepare_call(_: None, given: dict[str, ArraySpec]) -> Step:
    """Return the norm of arrays with these specs."""
    x, z, weight = (view_at(given[name]) for name in ("x", "z", "weight"))
    rows, heads, size = match(x=(x, "T H E"), z=(z, "T H E"), weight=(weight, "E")).values()
    width = norm_tile(size).vector * x.dtype.itemsize
    check_dense(x.dtype, x=x, weight=weight)
    check_rows(x.dtype, width, z=z)
    gpu = gpu_of(x=x, z=z, weight=weight)
    norm = prepare(
        GatedNormSizes(z.strides[0], heads, rows), value_size=size, dtype=x.dtype, gpu=gpu
    )
    new = new_results(given, gpu, ("out", (rows, heads, size), x.dtype, width))
    return Step(gpu, NamedCalls.of(norm.call), new)


_gated_norm = Operator("x z weight out", _prepare_call, numbers="eps weight_offset")
