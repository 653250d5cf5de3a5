"""Rows of a weight cut into groups that are rounded to codes by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats
from spaninfer_op_reference.quantized_weight import NUMBERS_AT_ONCE

Codes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.float32]
Round: TypeAlias = Callable[[Numbers], tuple[Codes, Numbers]]
"""Of groups[G M], one in a column: their codes [G M], and what belongs to each of them [P M]."""


def round_groups(weight: Floats, group: int | None, round_some: Round) -> tuple[Codes, Numbers]:
    """Return codes [N K] of a weight[N K], and of every group what `round_some` gave, [P N groups].

    A group is that many columns of a row, the last possibly fewer; None: all. Some groups are
    rounded at a time, side by side: NumPy is ten times as fast over long rows as over short ones.
    """
    rows, columns = weight.shape
    width = group or columns
    cut = columns // width * width
    bounds = [(0, cut, width)] if cut else []
    if cut < columns:
        bounds.append((cut, columns, columns - cut))
    codes = np.empty((rows, columns), np.uint8)
    beside = []
    for first, last, size in bounds:
        found = _round_all(weight[:, first:last].reshape(-1, size), round_some)
        codes[:, first:last] = found[0].reshape(rows, -1)
        beside.append(found[1].reshape(len(found[1]), rows, -1))
    return codes, np.concatenate(beside, axis=-1)


def _round_all(groups: Floats, round_some: Round) -> tuple[Codes, Numbers]:
    """Return codes [M G] and numbers [P M] of groups[M G]."""
    count, size = groups.shape
    codes = np.empty((count, size), np.uint8)
    beside = []
    step = max(1, NUMBERS_AT_ONCE // size)
    for first in range(0, count, step):
        numbers = np.ascontiguousarray(groups[first : first + step].T, np.float32)
        found, numbers_beside = round_some(numbers)
        codes[first : first + step] = found.T
        beside.append(numbers_beside)
    return codes, np.concatenate(beside, axis=-1)


def column_sums(squares: Numbers) -> Numbers:
    """Return the sums [M] of the columns of squares[G M], from the first row to the last."""
    if squares.shape[1] > 1:
        sums: Numbers = np.add.reduce(squares, axis=0)
        return sums
    return column_sums(np.repeat(squares, 2, axis=1))[:1]  # NumPy would add one column in pairs
