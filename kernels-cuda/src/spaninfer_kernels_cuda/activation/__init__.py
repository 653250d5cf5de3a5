"""Activations of rows, plain or gated (SwiGLU and its kin).

Plain: x[T C] -> out[T C]. Gated: x[T 2C] holds gate and up side by side, as one projection gives
them -> out[T C]. Both have one element type, 16-byte aligned and contiguous; arithmetic is float32,
rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Int32,
    NamedCalls,
    Operator,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Step,
    Variant,
    check_aligned,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    pointer_of,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.activation.tuning import THREADS, launch, vector


class ActivateArguments(NamedTuple):
    """Addresses, the arguments of activate_rows."""

    out: Pointer
    x: Pointer


class ActivateSizes(NamedTuple):
    """Sizes, the constants of activate_rows: loads of all rows, and of one."""

    loads: Int32
    loads_per_row: Int32


ACTIVATE_ROWS = Signature("activate_rows", ActivateArguments, ActivateSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "activation/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "activate.cuh"),
    kernels=(ACTIVATE_ROWS,),
)

Act = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu"]
ACTS: tuple[Act, ...] = get_args(Act)


@dataclass(frozen=True, slots=True)
class ActivationOptions:
    """A request for a variant: the activation, plain or gated by the row's other half."""

    act: Act
    gated: bool = False


@dataclass(frozen=True, slots=True)
class PreparedActivation:
    """An activation of one size.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    call: Call[ActivateArguments] | None

    def launch(self, x: object, *, out: object, stream: object = None) -> None:
        """Write the activation of x to `out`, which may be x itself where it is not gated."""
        self.start(stream_handle(stream, x), ActivateArguments(pointer_of(out), pointer_of(x)))

    def start(self, handle: int, arguments: ActivateArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.call is not None:
            self.call(handle, arguments)


def variant_for(options: ActivationOptions, channels: int, dtype: object) -> Variant:
    """Return the variant for results of `channels` elements of `dtype` (float32, 16-bit floats)."""
    if options.act not in ACTS:
        raise ShapeError(f"there is no activation {options.act!r}; there are {', '.join(ACTS)}")
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "ACT": options.act,
        "VECTOR": vector(channels, element.itemsize),
        "THREADS": THREADS,
        "GATED": options.gated,
    }
    return Variant.of("activate_rows", SOURCE, macros, element.architectures)


def prepare(
    options: ActivationOptions,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedActivation:
    """Return the activation with the result out[rows channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is no
    compiler.
    """
    compiled = compile_variant(
        variant_for(options, channels, dtype), gpu.arch, cache or user_cache()
    )
    per_row = channels // vector(channels, element_of(dtype).itemsize)
    loads = rows * per_row
    grid = launch(loads, gated=options.gated)
    kernel, sizes = load(compiled, gpu, ACTIVATE_ROWS), ActivateSizes(loads, per_row)
    call = Call(kernel, grid, sizes) if grid else None
    return PreparedActivation(rows, channels, workspace_bytes=0, call=call)


def activate(x: object, act: Act, *, out: object = None, stream: object = None) -> object:
    """Return act(x[T C]), of the type of x: float32, float16 or bfloat16.

    Without `out`, the result is a new array. Raises ShapeError, DTypeError or DeviceError for
    arguments that do not fit.
    """
    new = _activate.start((act, False), (x, out), stream=stream)
    return new[0] if out is None else out


def gated(gate_up: object, act: Act, *, out: object = None, stream: object = None) -> object:
    """Return act(gate) * up [T C] of gate_up[T 2C], whose rows are gate, then up.

    Types, `out`, stream and errors are those of `activate`.
    """
    new = _activate.start((act, True), (gate_up, out), stream=stream)
    return new[0] if out is None else out


def half_width(width: int) -> int:
    """Return the channels of a result whose gate and up are a row of `width`."""
    if width % 2:
        raise ShapeError(f"x: C is {width}, but gate and up are two halves of a row")
    return width // 2


def _prepare_call(options: tuple[Act, bool], given: dict[str, ArraySpec]) -> Step:
    """Return the activation of arrays with these specs; options say which, and if gated."""
    act, gated = options
    x = view_at(given["x"])
    rows, width = match(x=(x, "T C")).values()
    channels, gpu = half_width(width) if gated else width, gpu_of(x=x)
    alignment = vector(channels, x.dtype.itemsize) * x.dtype.itemsize
    check_dense(x.dtype, x=x)
    check_aligned(alignment, x=x)
    activation = prepare(
        ActivationOptions(act, gated), rows=rows, channels=channels, dtype=x.dtype, gpu=gpu
    )
    new = new_results(given, gpu, ("out", (rows, channels), x.dtype, alignment))
    return Step(gpu, NamedCalls.of(activation.call), new)


_activate = Operator("x out", _prepare_call)

VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(ActivationOptions(act, gated), channels, dtype)
    for act in ACTS
    for gated in (False, True)
    for channels in (1001, 4096)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every activation, plain and gated, and element type, with the narrowest and the widest load."""
