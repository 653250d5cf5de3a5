"""`linear`, the GEMM of activations and a packed weight.

Weights in float32 multiply float32 activations; those in bfloat16 also bfloat16 ones. Quantised
weights multiply activations that are quantised on the way: int8, symmetric, one scale per row and
group of channels, scale = largest size / 127.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.gemm.gemm_call import Epilogue, Gemm
from spaninfer_kernels_cpu.quantisation.layout import Layout
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

Floats = NDArray[np.float32]


def linear(
    x: NDArray[np.generic], weight: Packed, *, out: Floats, bias: Floats | None = None
) -> None:
    """Write x[T C] @ weight[O C].T + bias[O] into out[T O] (float32).

    x is float32; with bfloat16 weights it may be bfloat16. Columns of `out` must be contiguous.
    Works on every usable CPU. Raises ShapeError or DTypeError for arrays that do not fit.
    """
    demand_size("weights in one", weight.count, 1, 1)
    _check(x, weight.layout, out, bias)
    if not len(x):
        return
    gemm = Gemm(weight, rounded=x.dtype == ml_dtypes.bfloat16)
    rows = np.asarray(x, np.float32)
    scratch = aligned((len(x) * gemm.scratch_bytes,), np.uint8)
    calls = gemm.calls(
        Matrix.of(rows),
        out=Matrix.of(out),
        scratch=scratch.ctypes.data,
        epilogue=Epilogue(bias),
    )
    shared_thread_pool().run(Script(calls), [len(x)])


def _check(x: NDArray[np.generic], layout: Layout, out: Floats, bias: Floats | None) -> None:
    """Raise unless the arguments have the types and shapes that `linear` describes."""
    allowed = [np.dtype(np.float32)]
    if layout.format.kind == "bfloat16":
        allowed.append(np.dtype(ml_dtypes.bfloat16))
    if x.dtype not in allowed:
        names = " or ".join(map(str, allowed))
        raise DTypeError(f"x holds {x.dtype}; {layout.format.kind} weights take {names}")
    for name, array in (("out", out), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise DTypeError(f"{name} holds {array.dtype}; the kernel takes float32")
    if x.ndim != 2 or x.shape[1] != layout.channels or not x.flags.c_contiguous:
        raise ShapeError(
            f"x: expected contiguous (T C) with C = {layout.channels} of the weight, got shape "
            f"{x.shape} with strides {x.strides}"
        )
    expected = (len(x), layout.outputs)
    if out.shape != expected or (out.size and out.strides[1] != out.itemsize):
        raise ShapeError(
            f"out: expected shape {expected} with contiguous columns, got {out.shape} with strides "
            f"{out.strides}"
        )
    if not out.flags.writeable:
        raise ShapeError("out is read-only; give an array that can be written")
    if bias is not None and (bias.shape != expected[1:] or not bias.flags.c_contiguous):
        raise ShapeError(f"bias: expected contiguous ({layout.outputs},), got shape {bias.shape}")
