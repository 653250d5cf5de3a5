"""Rotary embeddings of heads as calls."""

from __future__ import annotations

from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    Call,
    Indirect,
    Matrix,
    held,
    tokens_per_task,
    word,
)


def rope_call(
    x: Matrix,
    *,
    out: Matrix,
    heads: int,
    size: int,
    half: int,
    cos: Indirect,
    sin: Indirect,
    paired: bool,
) -> Call:
    """Rotate the first 2 * half channels of every head by the angles of cos and sin[T half].

    Channel i turns with channel i + half, or, `paired`, 2 i with 2 i + 1.
    """
    words = (x.address, x.stride, out.address, out.stride, cos, sin, heads, size, half, int(paired))
    return Call(_rope, words, 1, tokens_per_task(heads * size))


def _rope(words: int, rows: int, task: int) -> None:
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
