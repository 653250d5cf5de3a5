"""Rotary embeddings (RoPE) of heads as calls."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.runtime.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)


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
        cos = floats_at(angles.cos + row * half * 4, half)
        sin = floats_at(angles.sin + row * half * 4, half)
        for head in range(heads):
            x = floats_at(row_at(arguments.x, row) + head * size * 4, size)
            out = floats_at(row_at(arguments.out, row) + head * size * 4, size)
            if paired:
                for i in range(half):
                    a, b = x[2 * i], x[2 * i + 1]
                    out[2 * i] = a * cos[i] - b * sin[i]
                    out[2 * i + 1] = b * cos[i] + a * sin[i]
            else:
                for i in range(half):
                    a, b = x[i], x[half + i]
                    out[i] = a * cos[i] - b * sin[i]
                    out[half + i] = b * cos[i] + a * sin[i]
            for i in range(2 * half, size):
                out[i] = x[i]
