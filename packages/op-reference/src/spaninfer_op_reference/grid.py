"""Weights rounded to even grids while loading: 2^bits levels a group, or 11 in 3.5 bits.

    W[n, k] = (code[n, k] - levels // 2) * scale + bias

DashInfer's InstantQuant, with scale and bias in bfloat16. Eleven levels are Inferflow's 3.5 bits
(Shi et al. 2024, arXiv 2401.08294; its format Q3H): the 11 * 11 = 121 pairs of two codes fit into
seven bits (`pair_codes`), where eight levels take six.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats
from spaninfer_op_reference.quantized_weight import QuantizedWeight
from spaninfer_op_reference.rounding import to_bfloat16
from spaninfer_op_reference.row_groups import column_sums, round_groups
from spaninfer_op_reference.weight_format import WeightFormat

GRIDS = {
    "int8": (256, 8.0),
    "int6": (64, 6.0),
    "int5": (32, 5.0),
    "int4": (16, 4.0),
    "int3.5": (11, 3.5),
    "int3": (8, 3.0),
    "int2": (4, 2.0),
}
"""Levels of grids, and the bits that a code takes, by name."""

SEARCHED_LEVELS = 11
"""The most levels of grids that are narrowed where that lowers the squared error."""

_NARROWINGS, _NARROWING = 5, np.float32(0.05)
_PARAMETER_BITS = 32  # of a group: scale and bias
_PAIR_LEVELS = 11
_KEPT_BITS = np.uint32(0xFFFF0000)  # of a bfloat16 in a float32

_Array = NDArray[np.float32]


def grid_format(name: str, group: int | None) -> WeightFormat:
    """Return the format of weights on a grid of GRIDS, a scale per `group` columns; None: a row."""
    levels, bits = GRIDS[name]
    return WeightFormat(
        name=name,
        values="integer",
        bits=(levels - 1).bit_length(),
        group_rows=1,
        group_columns=group,
        scale="bfloat16",
        stored_bits=bits if group is None else bits + _PARAMETER_BITS / group,
        zero="minimum",
    )


def quantize_to_grid(weight: Floats, format: WeightFormat) -> QuantizedWeight:
    """Return weight[N K] in a format of `grid_format`; the last group of a row may be shorter.

    The grid of a group reaches from its least to its largest weight: its middle level, the bias,
    rounded to the nearest bfloat16, its step to the next larger one that still reaches both ends.
    Of up to SEARCHED_LEVELS levels it is the one with the least squared error among grids whose
    ends are moved in, each by none to four twentieths of that range. All in float32, sums from the
    first column to the last.
    """
    levels = GRIDS[format.name][0]

    def round_some(groups: _Array) -> tuple[NDArray[np.uint8], _Array]:
        fit = _fit(groups, levels)
        return (_steps(groups, *fit, levels) + levels // 2).astype(np.uint8), np.stack(fit)

    codes, (scales, biases) = round_groups(weight, format.group_columns, round_some)
    minimums = np.float64(levels // 2) * scales - biases
    return QuantizedWeight(format, codes, scales, minimums=minimums)


def _fit(groups: _Array, levels: int) -> tuple[_Array, _Array]:
    """Return scales and biases [M] of groups[G M]."""
    least, most = groups.min(0), groups.max(0)
    scale, bias = _grid_over(least, most, levels)
    if levels > SEARCHED_LEVELS:
        return scale, bias
    best = _squares(groups, scale, bias, levels)
    move = _NARROWING * (most - least)
    for low in range(_NARROWINGS):
        for high in range(_NARROWINGS):
            ends = least + np.float32(low) * move, most - np.float32(high) * move
            tried = _grid_over(*ends, levels)
            squares = _squares(groups, *tried, levels)
            is_better = squares < best
            best = np.where(is_better, squares, best)
            scale, bias = (
                np.where(is_better, *pair) for pair in zip(tried, (scale, bias), strict=True)
            )
    return scale, bias


def _grid_over(least: _Array, most: _Array, levels: int) -> tuple[_Array, _Array]:
    """Return scales and biases of grids that reach from one number to another."""
    below = np.float32(levels // 2)
    above = np.float32(levels - 1) - below
    bias = to_bfloat16(least + below * ((most - least) / np.float32(levels - 1)))
    return _bfloat16_above(np.maximum((bias - least) / below, (most - bias) / above)), bias


def _bfloat16_above(x: _Array) -> _Array:
    """Return the least bfloat16 that is not below x, which is not negative."""
    return ((x.view(np.uint32) + ~_KEPT_BITS) & _KEPT_BITS).view(np.float32)


def _steps(groups: _Array, scale: _Array, bias: _Array, levels: int) -> _Array:
    """Return the nearest levels, even ones in the middle, counted from the middle one."""
    steps = groups - bias
    steps /= np.where(scale == 0, np.float32(1), scale)  # of groups that are all their bias
    np.rint(steps, out=steps)
    return np.clip(steps, -(levels // 2), levels - 1 - levels // 2, out=steps)


def _squares(groups: _Array, scale: _Array, bias: _Array, levels: int) -> _Array:
    """Return the sums [M] of the squares of what grids take from numbers."""
    errors = _steps(groups, scale, bias, levels)
    errors *= scale
    errors += bias
    errors -= groups
    errors *= errors
    return column_sums(errors)


def pair_codes(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return first + 11 * second, seven bits, of codes of eleven levels."""
    pairs: NDArray[np.uint8] = first + np.uint8(_PAIR_LEVELS) * second
    return pairs


def unpair_codes(pairs: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the codes that `pair_codes` was given: the remainder by 11, and the quotient."""
    second, first = np.divmod(pairs, np.uint8(_PAIR_LEVELS))
    return first, second
