"""A quantised weight and its definition in numbers: `dequantize_weight`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.arrays import Floats, Ints
from spaninfer_op_reference.weight_format import WeightFormat

NUMBERS_AT_ONCE = 1 << 16  # float64 intermediates of a chunk of rows stay in a core's cache


class StoredCodes(Protocol):
    """Codes [... N K] as their file has them, which become an array on demand.

    An index is (..., rows, :), or names one of a stack.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Ints: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Ints: ...


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Codes of a weight[... N K] with scales and minimums.

    codes           uint8 or int8 [... N K], one per byte, or what becomes that
    scales          [... N/group_rows K/group_columns], rounded up; floats, or whole numbers under
                    outer scales
    zeros           as scales, where the format has them
    minimums        as scales: offsets to subtract, scaled by `outer_minimums`
    outer           [... N/group_rows X] or [... 1 1]: each for as many groups of a row as X says
    outer_minimums  as outer
    group_of        int [... K]: the group of each column, where the format is permuted
    """

    format: WeightFormat
    codes: Ints | StoredCodes
    scales: Floats
    zeros: Floats | None = None
    minimums: Floats | None = None
    outer: Floats | None = None
    outer_minimums: Floats | None = None
    group_of: Ints | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the weight in its file."""
        return round(self.codes.size * self.format.stored_bits / 8)

    def __getitem__(self, number: int) -> QuantizedWeight:
        """Return one of stacked weights."""
        return self._map(lambda array: array[number])

    def rows(self, some: Ints | slice) -> QuantizedWeight:
        """Return rows of the weight[... N K], in any order; ValueError where some share scales, but
        not all.
        """
        if self.format.group_rows not in (1, None):
            raise ValueError(f"rows of {self.format} share scales and cannot be permuted")

        def move(array: Floats) -> Floats:
            return array if array.shape[-2] == 1 else array[..., some, :]

        moved = self if self.group_of is None else replace(self, group_of=None)
        return replace(moved._map(move), group_of=self.group_of)

    def _map(self, change: Callable[[Floats], Floats]) -> QuantizedWeight:
        arrays: dict[str, Any] = {
            field.name: change(array)
            for field in fields(self)[1:]
            if (array := getattr(self, field.name)) is not None
        }
        return replace(self, **arrays)


def stack_weights(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Return weights of one format and shape along a new first axis."""
    return _combined(weights, np.stack)


def concatenate_rows(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Return the rows of weights[... N K] of one format; ValueError for groups of rows."""
    return _rows_of(weights, lambda parts: np.concatenate(parts, axis=-2))


def interleave_rows(first: QuantizedWeight, second: QuantizedWeight) -> QuantizedWeight:
    """Return the weight[... 2N K] in which rows of two weights[... N K] of a format take turns.

    ValueError for groups of rows.
    """

    def take_turns(parts: Sequence[Floats]) -> Floats:
        both = np.stack(parts, axis=-2)
        return both.reshape(*both.shape[:-3], -1, both.shape[-1])

    return _rows_of((first, second), take_turns)


def _rows_of(
    weights: Sequence[QuantizedWeight], combine: Callable[[Sequence[Floats]], Floats]
) -> QuantizedWeight:
    if weights[0].format.group_rows != 1:
        raise ValueError(f"rows of {weights[0].format} share scales and cannot be put together")
    return _combined(weights, combine)


def _combined(
    weights: Sequence[QuantizedWeight], combine: Callable[[Sequence[Floats]], Floats]
) -> QuantizedWeight:
    first = weights[0]
    names = [field.name for field in fields(first)[1:] if getattr(first, field.name) is not None]
    arrays: dict[str, Any] = {
        name: combine([np.asarray(getattr(weight, name)) for weight in weights]) for name in names
    }
    return replace(first, **arrays)


def dequantize_weight(weight: QuantizedWeight) -> NDArray[np.float32]:
    """Return the weight[... N K]: computed in float64, where all but sums are exact, rounded once.

    The reference implementations of the formats compute in float32, with one rounding as well where
    scales have at most 16 bits of mantissa; see tests/test_quantized_weight.py.
    """
    weight = replace(weight, codes=np.asarray(weight.codes))
    out = np.empty(weight.shape, np.float32)
    for number in np.ndindex(weight.shape[:-2]):
        one = weight
        for index in number:
            one = one[index]
        for rows in _chunks(*one.shape):
            out[number][rows] = _dequantize_rows(one, rows)
    return out


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, NUMBERS_AT_ONCE // max(1, columns))
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def _dequantize_rows(weight: QuantizedWeight, rows: slice) -> NDArray[np.float64]:
    numbers = _values(weight.format, weight.codes[rows])
    scales = _scaled(weight.scales, weight.outer, weight, rows)
    if weight.zeros is not None:
        numbers = numbers - _over_columns(weight.zeros, weight, rows)
    numbers = numbers * _over_columns(scales, weight, None)
    if weight.minimums is not None:
        minimums = _scaled(weight.minimums, weight.outer_minimums, weight, rows)
        numbers = numbers - _over_columns(minimums, weight, None)
    return numbers


def group_scales(weight: QuantizedWeight) -> NDArray[np.float64]:
    """Return outer * scale of every group of every row, [N K/group_columns]; 1 where shared."""
    return _scaled(weight.scales, weight.outer, weight, slice(0, weight.shape[-2]))


def group_minimums(weight: QuantizedWeight) -> NDArray[np.float64]:
    """Return outer_minimum * minimum of every group of every row, [N K/group_columns]."""
    assert weight.minimums is not None
    return _scaled(weight.minimums, weight.outer_minimums, weight, slice(0, weight.shape[-2]))


def _values(format: WeightFormat, codes: Ints) -> NDArray[np.float64]:
    """Return the values of codes before they are scaled."""
    if format.values == "integer":
        return codes.astype(np.float64)
    table = _e4m3_numbers() if format.values == "e4m3" else np.array(format.table, np.float64)
    numbers: NDArray[np.float64] = table[codes]
    return numbers


def _scaled(
    inner: Floats, outer: Floats | None, weight: QuantizedWeight, rows: slice
) -> NDArray[np.float64]:
    """Return scales of groups [rows, groups] times those of the groups that hold them."""
    product = _of_rows(inner, weight, rows).astype(np.float64)
    if outer is None:
        return product
    above = _of_rows(outer, weight, rows).astype(np.float64)
    each = -(-product.shape[1] // above.shape[1])
    return product * np.repeat(above, each, axis=1)[:, : product.shape[1]]


def _of_rows(array: Floats, weight: QuantizedWeight, rows: slice) -> Floats:
    """Return the entries of rows [start, stop), from one entry per group of rows or for all."""
    if len(array) == 1:
        return array
    group = weight.format.group_rows or weight.shape[-2]
    some: Floats = array[np.arange(rows.start, rows.stop) // group]
    return some


def _over_columns(array: Floats, weight: QuantizedWeight, rows: slice | None) -> Floats:
    """Return one number per column from one per group."""
    entries = array if rows is None else _of_rows(array, weight, rows)
    if entries.shape[1] == 1:
        return entries
    if weight.group_of is not None:
        spread: Floats = entries[:, weight.group_of]
        return spread
    assert weight.format.group_columns is not None
    return np.repeat(entries, weight.format.group_columns, axis=1)[:, : weight.shape[-1]]


@cache
def _e4m3_numbers() -> NDArray[np.float64]:
    """Return the 256 numbers of e4m3 (finite, NaN at 127 and 255) by their bits."""
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = np.where(
        exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7)
    )
    size[bits & 127 == 127] = np.nan
    return np.where(bits >> 7, -size, size)
