"""Weights rounded to sixteen uneven levels while loading: those of GGUF's IQ4_NL, dense about zero.

    W[n, k] = level[code[n, k]] * scale

Weights of a group have a bell-shaped distribution, for which these levels are better than even
ones: the error is that of an even grid's of half a bit more, whose groups have a bias, too. Scales
are bfloat16, and may be negative: the levels are not symmetric.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats
from spaninfer_op_reference.quantized_weight import QuantizedWeight
from spaninfer_op_reference.rounding import to_bfloat16
from spaninfer_op_reference.row_groups import column_sums, round_groups
from spaninfer_op_reference.weight_format import IQ4_NL, WeightFormat

TABLES = {"iq4_nl": IQ4_NL}
"""Levels by code, by name."""

_SCALE_BITS = 16
_STRETCHES = np.array([0.8, 0.85, 0.9, 0.95, 1.0, 1.05], np.float32)

_Array = NDArray[np.float32]


def table_format(name: str, group: int | None) -> WeightFormat:
    """Return the format of weights at levels of TABLES, a scale per `group` columns or per row."""
    return WeightFormat(
        name=name,
        values="table",
        bits=4,
        group_rows=1,
        group_columns=group,
        scale="bfloat16",
        stored_bits=4 if group is None else 4 + _SCALE_BITS / group,
        table=TABLES[name],
    )


def quantize_to_table(weight: Floats, format: WeightFormat) -> QuantizedWeight:
    """Return weight[N K] in a format of `table_format`; the last group of a row may be shorter.

    The scale of a group is the one with the least squared error, the first of equals, of twelve:
    its number of largest size, the first of equals, meets the lowest level, or the highest, or
    lies 0.8, 0.85 to 1.05 times as far. Codes are the nearest levels, the lower in the middle. All
    in float32, sums from the first column to the last.
    """
    levels = np.array(format.table, np.float32)

    def round_some(groups: _Array) -> tuple[NDArray[np.uint8], _Array]:
        scales = _best(groups, levels)
        return _codes(groups, scales, levels), scales[None]

    codes, scales = round_groups(weight, format.group_columns, round_some)
    return QuantizedWeight(format, codes, scales[0])


def _best(groups: _Array, levels: _Array) -> _Array:
    """Return the scales [M] of groups[G M]."""
    largest = np.take_along_axis(groups, np.abs(groups).argmax(0)[None], 0)[0]
    ends = levels[0], levels[-1]
    tried = [to_bfloat16(largest / end * stretch) for end in ends for stretch in _STRETCHES]
    squares = [_squares(groups, scales, levels) for scales in tried]
    best = np.argmin(squares, axis=0)
    scales: _Array = np.take_along_axis(np.stack(tried), best[None], 0)[0]
    return scales


def _squares(groups: _Array, scales: _Array, levels: _Array) -> _Array:
    """Return the sums [M] of the squares of what levels take from groups[G M]."""
    errors = levels[_codes(groups, scales, levels)] * scales - groups
    return column_sums(errors * errors)


def _codes(groups: _Array, scales: _Array, levels: _Array) -> NDArray[np.uint8]:
    steps = groups / np.where(scales == 0, np.float32(1), scales)
    middles = (levels[1:] + levels[:-1]) / 2
    return np.searchsorted(middles, steps).astype(np.uint8)
