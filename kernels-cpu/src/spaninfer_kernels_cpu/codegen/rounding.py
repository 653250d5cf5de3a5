"""Rounding of float32, in arithmetic that LLVM turns into vector code, for Numba functions."""

from __future__ import annotations

import numpy as np

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import bits_of, float_of

ROUNDER = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves the nearest integer in low bits
ROUNDER_BITS = np.int32(0x4B400000)


@device_function
def rounded(x: np.float32) -> np.int32:
    """Return the nearest integer, the even one in the middle; |x| below 2**22."""
    shifted = np.float32(x + ROUNDER)
    return np.int32(bits_of(shifted) - ROUNDER_BITS)


@device_function
def nearest_bf16(x: np.float32) -> np.float32:
    """Return the bfloat16 nearest to a finite x; the even one in the middle."""
    bits = np.uint32(bits_of(x))
    bits = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
    nearest: np.float32 = float_of(bits & np.uint32(0xFFFF0000))
    return nearest
