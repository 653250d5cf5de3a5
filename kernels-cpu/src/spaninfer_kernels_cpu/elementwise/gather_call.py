"""Gathers as calls: rows of a table by token id, rows by index, and columns of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32, Indirect
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.elements import ELEMENTS, Element, larger, read, smaller
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.runtime.call import (
    LOGITS,
    MAX_SIZE,
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)

_NO_MATRIX = Matrix(0, 0)


@dataclass(frozen=True, slots=True)
class _EmbedArguments(Arguments):
    table: Matrix
    ids: Indirect
    offset: int
    out: Matrix
    channels: int
    scale: Float32
    onto: Matrix


def embed_call(
    table: NDArray[np.generic],
    *,
    ids: Indirect,
    out: Matrix,
    offset: int = 0,
    scale: float = 1.0,
    onto: Matrix = _NO_MATRIX,
) -> Call:
    """Write rows ids[T] + offset (int32) of table[V C], float32 or 16-bit floats, times scale, and
    plus the rows `onto`, if any.

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
    arguments = _EmbedArguments(
        table=Matrix(table.ctypes.data, table.strides[0]),
        ids=ids,
        offset=offset,
        out=out,
        channels=channels,
        scale=scale,
        onto=onto,
    )
    return Call(_embed(element), arguments, 1, tokens_per_task(channels))


_TABLES = ("float32", "bfloat16", "float16")


@variants
def _embed(element: Element) -> Kernel:
    def embed(arguments: _EmbedArguments, tokens: int, task: int) -> None:
        channels, scale = arguments.channels, arguments.scale
        ids = numbers_at(arguments.ids, tokens, np.int32)
        some = larger(1, NUMBERS_PER_TASK // channels)
        for row in range(task * some, smaller(tokens, (task + 1) * some)):
            source = row_at(arguments.table, ids[row] + arguments.offset)
            out = floats_at(row_at(arguments.out, row), channels)
            if arguments.onto.address == 0:
                for i in range(channels):
                    out[i] = read(element, source, i) * scale
            else:
                before = floats_at(row_at(arguments.onto, row), channels)
                for i in range(channels):
                    out[i] = before[i] + read(element, source, i) * scale

    return embed


@dataclass(frozen=True, slots=True)
class _GatherArguments(Arguments):
    x: Matrix
    indices: Indirect
    out: Matrix
    channels: int


def gather_rows_call(x: Matrix, *, indices: Indirect, out: Matrix, channels: int) -> Call:
    """Write rows indices[W] (int32) of x to out[W C]."""
    demand_size("channels", channels, 1, MAX_SIZE)
    arguments = _GatherArguments(x=x, indices=indices, out=out, channels=channels)
    return Call(_gather_rows, arguments, 1, 1, LOGITS)


def _gather_rows(arguments: _GatherArguments, tokens: int, task: int) -> None:
    indices = numbers_at(arguments.indices, tokens, np.int32)
    source = floats_at(row_at(arguments.x, indices[task]), arguments.channels)
    out = floats_at(row_at(arguments.out, task), arguments.channels)
    for i in range(len(out)):
        out[i] = source[i]


@dataclass(frozen=True, slots=True)
class Columns(Arguments):
    """The start of a copy: column `first` of every part of rows, parts being `size` numbers."""

    rows: Matrix
    size: int
    first: int


@dataclass(frozen=True, slots=True)
class _CopyArguments(Arguments):
    columns: Columns
    into: Columns
    parts: int
    width: int


def copy_call(
    columns: Columns, *, into: Columns, parts: int, width: int, count: int = TOKENS
) -> Call:
    """Copy `width` numbers of every one of `parts` parts of rows to parts of other rows.

    SizeError where numbers would lie outside of their part.
    """
    demand_size("parts", parts, 1, MAX_SIZE)
    demand_size("width", width, 1, MAX_SIZE)
    demand_size("first", columns.first, 0, columns.size - width)
    demand_size("first of into", into.first, 0, into.size - width)
    arguments = _CopyArguments(columns=columns, into=into, parts=parts, width=width)
    return Call(_copy, arguments, 1, tokens_per_task(parts * width), count)


def _copy(arguments: _CopyArguments, tokens: int, task: int) -> None:
    parts, width, columns, into = (
        arguments.parts,
        arguments.width,
        arguments.columns,
        arguments.into,
    )
    some = larger(1, NUMBERS_PER_TASK // (parts * width))
    for row in range(task * some, smaller(tokens, (task + 1) * some)):
        for part in range(parts):
            first = 4 * (part * columns.size + columns.first)
            source = floats_at(row_at(columns.rows, row) + first, width)
            first = 4 * (part * into.size + into.first)
            out = floats_at(row_at(into.rows, row) + first, width)
            for i in range(width):
                out[i] = source[i]
