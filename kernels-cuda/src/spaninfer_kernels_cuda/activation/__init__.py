"""Activations of rows, plain or gated (SwiGLU and its kin).

Plain: x[T C] -> out[T C]. Gated: x[T 2C] holds gate and up side by side, as one projection gives
them -> out[T C]. Both have one element type, 16-byte aligned and contiguous; arithmetic is float32,
rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    check_aligned,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.activation.tuning import THREADS, launch, vector

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "activation/kernel.cu",
    headers=("types.cuh", "overlap.cuh", "activate.cuh"),
)

Act = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "relu"]
ACTS: tuple[Act, ...] = get_args(Act)


@dataclass(frozen=True, slots=True)
class Form:
    """What is computed: the activation, and whether its result multiplies the row's other half."""

    act: Act
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """An activation of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    Pointers are multiples of 16 bytes wherever `channels` elements are.
    """

    rows: int
    channels: int
    workspace_bytes: int
    _call: Call | None

    def launch(self, x: object, *, out: object, stream: object = None) -> None:
        """Write the activation of x to `out`, which may be x itself where it is not gated.

        Arrays may be given as addresses. Without a stream, the current one of x's framework.
        """
        self.start(stream_handle(stream, x), pointer_of(out), pointer_of(x))

    def start(self, handle: int, out: int, x: int) -> None:
        """Launch with addresses on the stream with this handle, whichever it is."""
        if self._call is not None:
            self._call(handle, out, x)


def variant_for(form: Form, channels: int, dtype: object) -> Variant:
    """Return the variant for results of `channels` elements of `dtype` (float32, 16-bit floats)."""
    if form.act not in ACTS:
        raise ShapeError(f"there is no activation {form.act!r}; there are {', '.join(ACTS)}")
    element = element_of(dtype)
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "ACT": form.act,
        "VECTOR": vector(channels, element.itemsize),
        "THREADS": THREADS,
        "GATED": form.gated,
    }
    return Variant.of("activate_rows", SOURCE, macros, element.architectures)


def prepare(
    form: Form,
    *,
    rows: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> Prepared:
    """Return the activation with the result out[rows channels] on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError where no variant takes the sizes, CompileError where there is
    no compiler.
    """
    compiled = compile_variant(variant_for(form, channels, dtype), gpu.arch, cache or user_cache())
    per_row = channels // vector(channels, element_of(dtype).itemsize)
    loads = rows * per_row
    grid = launch(loads, gated=form.gated)
    call = Call(load(compiled, gpu), grid, "PP ii", always=(loads, per_row)) if grid else None
    return Prepared(rows, channels, workspace_bytes=0, _call=call)


_prepared = lru_cache(maxsize=1024)(prepare)


def activate(x: object, act: Act, *, out: object = None, stream: object = None) -> object:
    """Return act(x[T C]).

    Without `out`, the result is a new array in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take. Without a stream, the current one of x's framework.
    """
    return _run(Form(act), x, out, stream)


def gated(gate_up: object, act: Act, *, out: object = None, stream: object = None) -> object:
    """Return act(gate) * up [T C] of gate_up[T 2C], whose rows are gate, then up.

    `out` and stream are as for `activate`.
    """
    return _run(Form(act, gated=True), gate_up, out, stream)


def _run(form: Form, x: object, out: object, stream: object) -> object:
    """Check the arguments, prepare or find what is prepared, launch."""
    given = view_of(x)
    rows, width = match(x=(given, "T C")).values()
    if form.gated and width % 2:
        raise ShapeError(f"x: C is {width}, but gate and up are two halves of a row")
    channels, gpu = width // 2 if form.gated else width, gpu_of(x=given)
    alignment = vector(channels, given.dtype.itemsize) * given.dtype.itemsize
    check_dense(given.dtype, x=given)
    check_aligned(alignment, x=given)
    step = _prepared(form, rows=rows, channels=channels, dtype=given.dtype, gpu=gpu)
    handle = stream_handle(stream, x)
    out = result_array(out, (rows, channels), given.dtype, gpu, handle, alignment=alignment)
    step.start(handle, pointer_of(out), given.pointer)
    return out


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(Form(act, gated), channels, dtype)
    for act in ACTS
    for gated in (False, True)
    for channels in (1001, 4096)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
)
"""Every activation, form and element type, with the narrowest and the widest load."""
