"""The format of a packed weight, and its order in memory: `pack` is the definition, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernel_launch import ShapeError

Shift: TypeAlias = Literal["none", "zero", "minimum"]
Values: TypeAlias = Literal["integer", "e4m3", "e2m1"]
Activations: TypeAlias = Literal["floats", "e4m3"]

BLOCK_ROWS: Final = 64  # of the weight, in a record
CHUNK: Final = 128  # columns of a record
GROUPS: Final = (16, 32, 64, 128, None)
_PAIRED: Final = 8  # adjacent gate rows, followed by their up rows
_SHIFTS: Final = ("none", "zero", "minimum")
_CODED_GROUPS: Final = (32, 64, 128)  # that activations in e4m3 are multiplied by
_FLOAT_BITS: Final = {"e4m3": 8, "e2m1": 4}


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """The meaning of codes of 4 or 8 bits.

    W[n k] = factor[n] * (scale[n k/group] * (code[n k] - zero[n k/group])), or
    W[n k] = factor[n] * (scale[n k/group] * code[n k] - minimum[n k/group])

    group  columns that share a scale; None: all of a row, which then has its factor alone
    shift  "zero": whole zero points, within the codes; "minimum": what is subtracted after scaling;
           "none": codes are centred on 2^(bits-1)
    values "e4m3": codes of 8 bits are floats and not centred; "e2m1": codes of 4 bits are
    activations
           "floats": of 16 bits; "e4m3": codes with a scale per token, for integers of 4 bits in
           groups of 32 to 128, which then lie in another order
    """

    bits: Literal[4, 8]
    group: int | None
    shift: Shift = "none"
    values: Values = "integer"
    activations: Activations = "floats"

    def __post_init__(self) -> None:
        """Raise ShapeError where there is no kernel."""
        if self.bits not in (4, 8):
            raise ShapeError(f"codes of {self.bits} bits; allowed are 4 and 8")
        if self.group not in GROUPS:
            raise ShapeError(f"groups of {self.group} columns; allowed are {GROUPS}")
        if self.group is None and self.shift != "none":
            raise ShapeError(f"a whole row cannot share a {self.shift}; repeat it per 128 columns")
        bits = _FLOAT_BITS.get(self.values, self.bits)
        if self.bits != bits or (self.values in _FLOAT_BITS and self.shift != "none"):
            wanted = f"{bits} and none only"
            raise ShapeError(f"{self.values} of {self.bits} bits with shift {self.shift}; {wanted}")
        if self.activations == "e4m3" and not self._becomes_e4m3():
            raise ShapeError(
                f"activations in e4m3 and {self.values} codes of {self.bits} bits in groups of "
                f"{self.group}, shift {self.shift}; allowed are integers of 4 bits in groups of "
                f"{', '.join(map(str, _CODED_GROUPS))} without shift"
            )

    def _becomes_e4m3(self) -> bool:
        is_centred = self.values == "integer" and self.shift == "none"
        return self.bits == 4 and is_centred and self.group in _CODED_GROUPS

    @property
    def code_bytes(self) -> int:
        """Bytes of a record's codes."""
        return BLOCK_ROWS * CHUNK * self.bits // 8

    @property
    def scale_groups(self) -> int:
        """Groups of columns in a record that have a scale."""
        return 0 if self.group is None else CHUNK // self.group

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        kinds = 1 if self.shift == "none" else 2
        return self.code_bytes + kinds * self.scale_groups * BLOCK_ROWS * 2

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of x."""
        return 2 if self.activations == "floats" else 1

    @property
    def column_grain(self) -> int:
        """Columns of the weight come in this many: rows of x are whole copies of 16 bytes."""
        return 16 // self.activation_bytes

    @property
    def shift_number(self) -> int:
        """The macro SHIFT."""
        return _SHIFTS.index(self.shift)

    def records(self, outputs: int, inner: int) -> tuple[int, int, int]:
        """Return the shape of the records of a weight[outputs inner]."""
        return -(-outputs // BLOCK_ROWS), -(-inner // CHUNK), self.record_bytes


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight[outputs inner] in the order of the kernels; arrays of any framework.

    records  uint8 [blocks chunks record_bytes]
    factors  float32 [64 * blocks]
    gated    whether its rows are those of a gate above those of up
    """

    records: Any
    factors: Any
    format: QuantizedFormat
    outputs: int
    inner: int
    gated: bool = False


def pack(
    codes: NDArray[np.uint8],
    format: QuantizedFormat,
    *,
    scales: NDArray[Any] | None = None,
    shifts: NDArray[Any] | None = None,
    factors: NDArray[Any] | None = None,
    gated: bool = False,
) -> PackedWeight:
    """Return codes[N K] in the order of the kernels: csrc of quantized_gemm/codes.cuh.

    `scales` and `shifts` are [N K/group], rounded up; `factors` are [N], 1 unless given. With
    `gated`, the rows are those of a gate above those of up.
    """
    outputs, inner = codes.shape
    blocks, chunks, _ = format.records(outputs, inner)
    order = row_order(outputs, gated=gated)
    parts = [_codes(_padded(codes, order, chunks * CHUNK), format)]
    for numbers, dtype in ((scales, np.float16), (shifts, _shift_type(format))):
        if dtype is not None and numbers is not None:
            groups = chunks * format.scale_groups
            padded = _padded(numbers.astype(dtype), order, groups)
            per_chunk = padded.reshape(blocks, BLOCK_ROWS, chunks, format.scale_groups)
            bytes_of = np.ascontiguousarray(per_chunk.transpose(0, 2, 3, 1)).view(np.uint8)
            parts.append(bytes_of.reshape(blocks, chunks, -1))
    given = np.ones(outputs, np.float32) if factors is None else factors.astype(np.float32)
    records = np.ascontiguousarray(np.concatenate(parts, axis=2))
    assert records.shape == format.records(outputs, inner), (records.shape, format)
    placed = _padded(given[:, None], order, 1)[:, 0].copy()
    return PackedWeight(records, placed, format, outputs, inner, gated)


def row_order(outputs: int, *, gated: bool) -> NDArray[np.int64]:
    """Return the row of the weight at every row of its records; -1 where there is none."""
    rows = np.arange(-(-outputs // BLOCK_ROWS) * BLOCK_ROWS)
    if not gated:
        return np.where(rows < outputs, rows, -1)
    half = outputs // 2
    pairs, place = np.divmod(rows, 2 * _PAIRED)
    gate = pairs * _PAIRED + place % _PAIRED
    return np.where(gate < half, gate + half * (place >= _PAIRED), -1)


def _shift_type(format: QuantizedFormat) -> type[np.uint16] | type[np.float16] | None:
    return {"none": None, "zero": np.uint16, "minimum": np.float16}[format.shift]


def _padded(array: NDArray[Any], order: NDArray[np.int64], columns: int) -> NDArray[Any]:
    """Return rows in an order, zeros where there is none and beyond the last column."""
    out = np.zeros((len(order), columns), array.dtype)
    out[order >= 0, : array.shape[1]] = array[order[order >= 0]]
    return out


def _codes(codes: NDArray[np.uint8], format: QuantizedFormat) -> NDArray[np.uint8]:
    """Return the codes of all records, [blocks chunks code_bytes]."""
    blocks, chunks = len(codes) // BLOCK_ROWS, codes.shape[1] // CHUNK
    if format.activations == "e4m3":
        return _bytes_for_e4m3(codes).reshape(blocks, chunks, -1)
    # block, warp, upper half of 16 rows, row; chunk, load, step, upper half of 16 columns, pair
    steps = 4 if format.bits == 4 else 2
    cut = codes.reshape(blocks, 4, 2, 8, chunks, 8 // steps, steps, 2, 4, 2)
    if format.bits == 8:
        moved = cut.transpose(0, 4, 1, 5, 3, 8, 6, 7, 2, 9)
        return np.ascontiguousarray(moved).reshape(blocks, chunks, -1)
    nibbles = cut.transpose(0, 4, 1, 5, 3, 8, 6, 9, 7, 2).reshape(blocks, chunks, -1, 2)
    return nibbles[..., 0] | np.left_shift(nibbles[..., 1], np.uint8(4))


def _bytes_for_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of all records whose fragments are e4m3."""
    blocks, chunks = len(codes) // BLOCK_ROWS, codes.shape[1] // CHUNK
    stored = np.where(codes < 8, 0x87 - codes, codes - 8).astype(np.uint8)
    # block, warp, upper half of 16 rows, row; chunk, load, step, half of 32 columns, quad
    cut = stored.reshape(blocks, 4, 2, 8, chunks, 2, 2, 2, 4, 4)
    words = np.ascontiguousarray(cut.transpose(0, 4, 1, 5, 3, 8, 6, 7, 2, 9)).view("<u4")[..., 0]
    lower, upper = words[..., 0], words[..., 1]
    return np.ascontiguousarray(lower | upper << 4 | upper >> 28).view(np.uint8)
