"""exp, exp2 and tanh of float32 as straight-line arithmetic, which LLVM turns into vector code.

The C library's expf is a call per element; in a loop over scores it costs more than the products
that made them. Largest errors in units of the last place: 1 for exp, 3 for exp2 and tanh (tests/).
"""

from __future__ import annotations

import numpy as np

from spaninfer_kernels_cpu.codegen.device_function import device_function_with
from spaninfer_kernels_cpu.codegen.elements import bits_of, float_of

LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693145751953125)  # ln 2 cut to 15 bits: n * _LN2_HIGH is exact
_LN2_LOW = np.float32(1.428606765330187e-06)
ROUNDER = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves the nearest integer in low bits
COARSE_POWERS = tuple(map(np.float32, (0.05517169, 0.24261117, 0.69326099, 0.99992807)))
"""The polynomial of degree 3 nearest to 2**r, |r| <= 1 / 2: within 7.5e-5 of it; first r**3's."""

_ROUNDER_BITS = np.int32(0x4B400000)
_LOWEST = np.float32(-87.0)  # exp(-87) is just above the smallest normal float32
_HIGHEST = np.float32(88.0)


@device_function_with(fastmath={"contract"})
def exp(x: np.float32) -> np.float32:
    """Return e**x for x in [-87, 88]; values outside are moved to the nearer end, NaN stays NaN.

    x = n ln 2 + r with integer n and |r| <= ln 2 / 2; e**r by its Taylor polynomial of degree 7,
    2**n by writing n into the exponent bits. Never compiled with reassociation, which would cancel
    the rounding constant.
    """
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    shifted = x * LOG2_E + ROUNDER
    n = shifted - ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.float32(1 / 5040)
    p = p * r + np.float32(1 / 720)
    p = p * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1)
    p = p * r + np.float32(1)
    exponent = np.int32(bits_of(shifted) - _ROUNDER_BITS + np.int32(127))
    power: np.float32 = float_of(exponent << np.int32(23))
    return p * power


@device_function_with(fastmath={"contract"})
def exp2(x: np.float32) -> np.float32:
    """Return 2**x for x in [-126, 127]; values outside are not caught, NaN stays NaN.

    As `exp`, by the polynomial of degree 5 that is nearest to 2**r, |r| <= 1 / 2, within 8e-8.
    """
    shifted = x + ROUNDER
    r = x - (shifted - ROUNDER)
    p = np.float32(0.0013276472454890609)
    p = p * r + np.float32(0.009675540961325169)
    p = p * r + np.float32(0.05550713092088699)
    p = p * r + np.float32(0.24022120237350464)
    p = p * r + np.float32(0.6931469440460205)
    p = p * r + np.float32(1.0000001192092896)
    exponent = np.int32(bits_of(shifted) - _ROUNDER_BITS + np.int32(127))
    power: np.float32 = float_of(exponent << np.int32(23))
    return p * power


@device_function_with(fastmath={"contract"})
def coarse_exp2(x: np.float32) -> np.float32:
    """Return 2**x for x in [-125, 127] within 7.6e-5 of it; values outside are not caught.

    The integer is added to the exponent of 2**r: its bits, moved there, push out all others.
    """
    shifted = x + ROUNDER
    r = x - (shifted - ROUNDER)
    p = COARSE_POWERS[0]
    p = p * r + COARSE_POWERS[1]
    p = p * r + COARSE_POWERS[2]
    p = p * r + COARSE_POWERS[3]
    power: np.float32 = float_of(np.int32(bits_of(p) + np.int32(bits_of(shifted) << np.int32(23))))
    return power


@device_function_with(fastmath={"contract"})
def tanh(x: np.float32) -> np.float32:
    """Return the hyperbolic tangent of x.

    1 - 2 / (e**2|x| + 1) loses digits as x nears 0, so below 0.3 the Taylor polynomial of
    degree 9 takes over; its remainder there is below 3e-8 of the value.
    """
    size = abs(x)
    capped = np.float32(10) if size > np.float32(10) else size  # tanh(10) rounds to 1
    far = np.float32(1) - np.float32(2) / (exp(capped + capped) + np.float32(1))
    square = size * size
    p = np.float32(62 / 2835)
    p = p * square + np.float32(-17 / 315)
    p = p * square + np.float32(2 / 15)
    p = p * square + np.float32(-1 / 3)
    near = size + size * square * p
    result = near if size < np.float32(0.3) else far
    return -result if x < np.float32(0) else result
