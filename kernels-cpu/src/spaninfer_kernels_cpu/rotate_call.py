"""Rotary embeddings of heads as calls."""

from __future__ import annotations

from spaninfer_kernels_cpu.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    Call,
    Place,
    Rows,
    held,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import larger, smaller
from spaninfer_kernels_cpu.errors import demand_size
from spaninfer_kernels_cpu.pointer import floats_at


def rotate_call(
    x: Rows, *, out: Rows, heads: int, size: int, half: int, cos: Place, sin: Place, paired: bool
) -> Call:
    """Rotate the first 2 * half channels of every head by the angles of cos and sin[T half].

    Channel i turns with channel i + half, or, `paired`, 2 i with 2 i + 1. SizeError where there are
    fewer channels.
    """
    demand_size("heads", heads, 1, MAX_SIZE)
    demand_size("size of a head", size, 2, MAX_SIZE)
    demand_size("half of the rotated channels", half, 1, size // 2)
    words = (x.address, x.stride, out.address, out.stride, cos, sin, heads, size, half, int(paired))
    return Call(_rotate, words, 1, rows_per_task(heads * size))


def _rotate(words: int, rows: int, task: int) -> None:
    heads, size, half, paired = word(words, 6), word(words, 7), word(words, 8), word(words, 9)
    some = larger(1, NUMBERS_PER_TASK // (heads * size))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        cos = floats_at(held(words, 4) + row * half * 4, half)
        sin = floats_at(held(words, 5) + row * half * 4, half)
        for head in range(heads):
            x = floats_at(word(words, 0) + row * word(words, 1) + head * size * 4, size)
            out = floats_at(word(words, 2) + row * word(words, 3) + head * size * 4, size)
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
