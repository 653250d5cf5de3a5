"""Rotary embeddings (RoPE) of heads as calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.arguments import Arguments, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, larger, read, smaller, write
from spaninfer_kernels_cpu.codegen.vectors import intrinsic
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.runtime.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)

_LANES = v.F32X16.count


@dataclass(frozen=True, slots=True)
class RopeAngles(Arguments):
    """cos and sin[T half] of the first 2 * half channels of a head.

    Channel i rotates with channel i + half, or, `paired`, 2 i with 2 i + 1.
    """

    cos: Indirect
    sin: Indirect
    half: int
    paired: bool


@dataclass(frozen=True, slots=True)
class _RopeArguments(Arguments):
    x: Matrix
    out: Matrix
    angles: RopeAngles
    heads: int
    size: int


def rope_call(x: Matrix, angles: RopeAngles, *, out: Matrix, heads: int, size: int) -> Call:
    """Rotate the first channels of every head of x[T heads size]; the others are copied.

    SizeError where there are fewer channels than angles want.
    """
    demand_size("heads", heads, 1, MAX_SIZE)
    demand_size("size of a head", size, 2, MAX_SIZE)
    demand_size("half of the rotated channels", angles.half, 1, size // 2)
    arguments = _RopeArguments(x=x, out=out, angles=angles, heads=heads, size=size)
    return Call(_rope, arguments, 1, tokens_per_task(heads * size))


def _rope(arguments: _RopeArguments, tokens: int, task: int) -> None:
    heads, size, angles = arguments.heads, arguments.size, arguments.angles
    half, paired = angles.half, angles.paired
    some = larger(1, NUMBERS_PER_TASK // (heads * size))
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        cos_at, sin_at = angles.cos + row * half * 4, angles.sin + row * half * 4
        for head in range(heads):
            x_at = row_at(arguments.x, row) + head * size * 4
            out_at = row_at(arguments.out, row) + head * size * 4
            x, out = floats_at(x_at, size), floats_at(out_at, size)
            if paired:
                cos, sin = floats_at(cos_at, half), floats_at(sin_at, half)
                for i in range(half):
                    a, b = x[2 * i], x[2 * i + 1]
                    out[2 * i] = a * cos[i] - b * sin[i]
                    out[2 * i + 1] = b * cos[i] + a * sin[i]
            else:
                _rotate_halves(x_at, out_at, half, cos_at, sin_at)
            for i in range(2 * half, size):
                out[i] = x[i]


@device_function
def _rotate_halves(x: int, out: int, half: int, cos: int, sin: int) -> None:
    """Rotate each of `half` channels with the one that many behind; `out` may be `x`.

    Loops that write what they read stay scalar.
    """
    whole, behind = half // _LANES * _LANES, 4 * half
    for i in range(0, whole, _LANES):
        at = 4 * i
        _rotate_lanes(x + at, out + at, behind, cos + at, sin + at)
    for i in range(whole, half):
        a, b = read(FLOAT32, x, i), read(FLOAT32, x, half + i)
        c, s = read(FLOAT32, cos, i), read(FLOAT32, sin, i)
        write(FLOAT32, out, i, a * c - b * s)
        write(FLOAT32, out, half + i, b * c + a * s)


@intrinsic
def _rotate_lanes(_context: Any, _x: Any, _out: Any, _behind: Any, _cos: Any, _sin: Any) -> Any:
    """Rotate sixteen channels with those `behind` bytes further."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        x, out, behind, *angles = arguments
        first, second = v.load(b, v.F32X16, x), v.load(b, v.F32X16, b.add(x, behind))
        cos, sin = (v.load(b, v.F32X16, angle) for angle in angles)
        v.store(b, b.fsub(b.fmul(first, cos), b.fmul(second, sin)), out)
        turned = b.fadd(b.fmul(second, cos), b.fmul(first, sin))
        v.store(b, turned, b.add(out, behind))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit
