"""Rows by index as calls: rows of tables, the rows that are wanted, columns of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    WANTED,
    Call,
    Place,
    Rows,
    held,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import ELEMENTS, Element, larger, read, smaller
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.kernel import Kernel, variants
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at


def embed_call(
    table: NDArray[np.generic], *, ids: Place, out: Rows, offset: int = 0, scale: float = 1.0
) -> Call:
    """Write rows ids[T] + offset (int32) of table[V C], float32 or 16-bit floats, times scale.

    Ids are trusted to name rows. Raises KernelError for another table, or an offset beyond it.
    """
    if table.dtype.name not in _TABLES:
        raise DTypeError(f"table holds {table.dtype}; the kernel takes {', '.join(_TABLES)}")
    if table.ndim != 2 or 0 in table.shape or table.strides[1] != table.itemsize:
        raise ShapeError(
            f"table: expected axes (V C), neither empty, rows contiguous, got shape {table.shape} "
            f"with strides {table.strides}"
        )
    demand_size("offset", offset, 0, len(table) - 1)
    element, channels = ELEMENTS[table.dtype.name], table.shape[1]
    words = (table.ctypes.data, table.strides[0], ids, offset, out.address, out.stride, channels)
    return Call(_embed(element), (*words, float(scale)), 1, rows_per_task(channels))


_TABLES = ("float32", "bfloat16", "float16")


@variants
def _embed(element: Element) -> Kernel:
    def embed(words: int, rows: int, task: int) -> None:
        channels, scale = word(words, 6), real(words, 7)
        ids = numbers_at(held(words, 2), rows, np.int32)
        some = larger(1, NUMBERS_PER_TASK // channels)
        for row in range(task * some, smaller(rows, (task + 1) * some)):
            source = word(words, 0) + (ids[row] + word(words, 3)) * word(words, 1)
            out = floats_at(word(words, 4) + row * word(words, 5), channels)
            for i in range(channels):
                out[i] = read(element, source, i) * scale

    return embed


def take_rows_call(x: Rows, *, wanted: Place, out: Rows, channels: int) -> Call:
    """Write rows wanted[W] (int32) of x to out[W C]."""
    demand_size("channels", channels, 1, MAX_SIZE)
    words = (x.address, x.stride, wanted, out.address, out.stride, channels)
    return Call(_take_rows, words, 1, 1, WANTED)


def _take_rows(words: int, rows: int, task: int) -> None:
    wanted = numbers_at(held(words, 2), rows, np.int32)
    source = floats_at(word(words, 0) + wanted[task] * word(words, 1), word(words, 5))
    out = floats_at(word(words, 3) + task * word(words, 4), word(words, 5))
    for i in range(len(out)):
        out[i] = source[i]


def copy_call(
    x: Rows,
    *,
    out: Rows,
    parts: int,
    size: int,
    first: int,
    out_size: int,
    out_first: int,
    count: int,
) -> Call:
    """Write numbers [first, first + count) of every one of `parts` parts of x's rows.

    A part of x has `size` numbers; one of out has `out_size`, and takes them from out_first on.
    SizeError where numbers would lie outside of their part.
    """
    demand_size("parts", parts, 1, MAX_SIZE)
    demand_size("count", count, 1, MAX_SIZE)
    demand_size("first", first, 0, size - count)
    demand_size("out_first", out_first, 0, out_size - count)
    rows = (x.address, x.stride, out.address, out.stride)
    words = (*rows, parts, size, first, out_size, out_first, count)
    return Call(_copy, words, 1, rows_per_task(parts * count))


def _copy(words: int, rows: int, task: int) -> None:
    parts, count = word(words, 4), word(words, 9)
    some = larger(1, NUMBERS_PER_TASK // (parts * count))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        for part in range(parts):
            first = 4 * (part * word(words, 5) + word(words, 6))
            source = floats_at(word(words, 0) + row * word(words, 1) + first, count)
            first = 4 * (part * word(words, 7) + word(words, 8))
            out = floats_at(word(words, 2) + row * word(words, 3) + first, count)
            for i in range(count):
                out[i] = source[i]
