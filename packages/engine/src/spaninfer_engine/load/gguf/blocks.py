"""Blocks of GGUF's quantised types, taken apart.

A row is a sequence of blocks, each with its own scales. What bytes mean is ggml's definition
(ggml-common.h and ggml-quants.c of llama.cpp); the gguf package's `dequantize` computes the same,
and tests/load/gguf/test_blocks.py compares the two bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import E2M1, IQ4_NL, QuantizedWeight, WeightFormat

from spaninfer_engine.load.tensors.threads import in_threads

Bytes: TypeAlias = NDArray[np.uint8]
Codes: TypeAlias = NDArray[np.uint8] | NDArray[np.int8]  # [... B length]
Parts: TypeAlias = dict[str, NDArray[np.generic]]  # fields of QuantizedWeight, [... B n] each

BLOCK, SUPER_BLOCK = 32, 256  # weights

_LOW_HIGH = np.array([0, 4], np.uint8)
_TWO_BITS = np.array([0, 2, 4, 6], np.uint8)
_BYTES_AT_ONCE = 1 << 20  # of a chunk; smaller ones cost more in threads than caches spare


@dataclass(frozen=True, slots=True)
class BlockType:
    """A GGUF type: its format, bytes per block of `length` weights, and what takes them apart."""

    format: WeightFormat
    length: int
    block_bytes: int
    scales: Callable[[Bytes], Parts]
    codes: Callable[[Bytes], Codes]

    def read(self, rows: Bytes, columns: int) -> QuantizedWeight:
        """Return the weight[... N K] of rows of blocks, uint8 [... N bytes].

        Its codes are taken apart when they are wanted.
        """
        blocks = rows.reshape(*rows.shape[:-1], columns // self.length, self.block_bytes)
        found = self.scales(blocks)
        parts = {name: part.reshape(*rows.shape[:-1], -1) for name, part in found.items()}
        return QuantizedWeight(self.format, BlockCodes(self, blocks), **parts)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """Codes of a weight[... N K] in their blocks, uint8 [... N B bytes]; a StoredCodes."""

    kind: BlockType
    blocks: Bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's."""
        return (*self.blocks.shape[:-2], self.blocks.shape[-2] * self.kind.length)

    @property
    def size(self) -> int:
        """The number of codes."""
        return prod(self.shape)

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.blocks)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return the codes of rows, (..., rows, :), or of one of a stack; no others are made."""
        rows = (*index[:-1], slice(None), slice(None)) if isinstance(index, tuple) else index
        return np.asarray(BlockCodes(self.kind, self.blocks[rows]))

    def __array__(
        self,
        dtype: np.dtype[Any] | None = None,
        copy: bool | None = None,  # numpy asks with it; it is always a new array
    ) -> NDArray[Any]:
        """Return codes [... N K]; several threads take many apart."""
        lines = self.blocks.reshape(-1, *self.blocks.shape[-2:])
        codes = np.empty((len(lines), self.shape[-1]), self.kind.codes(lines[:1]).dtype)

        def fill(some: slice) -> None:
            codes[some] = self.kind.codes(lines[some]).reshape(-1, codes.shape[1])

        in_threads(fill, len(lines), max(1, _BYTES_AT_ONCE * len(lines) // self.blocks.size))
        made = codes.reshape(self.shape)
        return made if dtype is None else made.astype(dtype, copy=False)


def _float16(data: Bytes) -> NDArray[np.generic]:
    """Return numbers [... n] of bytes [... 2n], as float32."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _fields(data: Bytes, width: int) -> Bytes:
    """Return numbers [... 8/width n] of `width` bits: the lowest of bytes [... n], then others.

    One shift for all bytes after the other: with the shifts as an axis NumPy's inner loops are as
    short as n, and a code takes 1.2 to 4 ns instead of 0.6 to 1 (Zen 3).
    """
    found: Bytes = np.empty((*data.shape[:-1], 8 // width, data.shape[-1]), np.uint8)
    for number in range(8 // width):
        np.right_shift(data, np.uint8(number * width), out=found[..., number, :])
    found &= np.uint8((1 << width) - 1)
    return found


def _nibbles(data: Bytes) -> Bytes:
    """Return codes [... 2n] of bytes [... n]: the low halves, then the high ones."""
    return _fields(data, 4).reshape(*data.shape[:-1], -1)


def _fifth_bits(data: Bytes) -> Bytes:
    """Return the bits of a little-endian word of 32, as 16 of codes [... 32]."""
    return np.unpackbits(data, axis=-1, bitorder="little") << np.uint8(4)


def _signed(codes: Bytes, middle: int) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(middle)


# ---- blocks of 32 --------------------------------------------------------------------------------


def _scale(block: Bytes) -> Parts:
    """Scale d."""
    return {"scales": _float16(block[..., :2])}


def _scale_and_bias(block: Bytes) -> Parts:
    """Scale d and bias m, which is added: a minimum of -m."""
    return _scale(block) | {"minimums": np.negative(_float16(block[..., 2:4]))}


def _exponent(block: Bytes) -> Parts:
    """A power of two."""
    return {"scales": np.ldexp(np.float32(1), block[..., 0].astype(np.int32) - 127)}


def _q4_0(block: Bytes) -> Codes:
    return _signed(_nibbles(block[..., 2:]), 8)


def _q4_1(block: Bytes) -> Codes:
    return _nibbles(block[..., 4:])


def _q5_0(block: Bytes) -> Codes:
    return _signed(_nibbles(block[..., 6:]) | _fifth_bits(block[..., 2:6]), 16)


def _q5_1(block: Bytes) -> Codes:
    return _nibbles(block[..., 8:]) | _fifth_bits(block[..., 4:8])


def _q8_0(block: Bytes) -> Codes:
    return block[..., 2:].view(np.int8)


def _iq4_nl(block: Bytes) -> Codes:
    return _nibbles(block[..., 2:])


def _mxfp4(block: Bytes) -> Codes:
    return _nibbles(block[..., 1:])


# ---- blocks of 256 -------------------------------------------------------------------------------


def _pairs(data: Bytes) -> Bytes:
    """Return 2-bit codes [... 256] of bytes [... 64]: 32 bytes give four times 32 in a row."""
    codes = _fields(data.reshape(*data.shape[:-1], 2, 32), 2)
    return codes.reshape(*data.shape[:-1], SUPER_BLOCK)


def _nibble_chunks(data: Bytes) -> Bytes:
    """Return codes [... 256] of bytes [... 128]: 32 bytes give 32 low halves, then 32 high."""
    return _nibbles(data.reshape(*data.shape[:-1], 4, 32)).reshape(*data.shape[:-1], SUPER_BLOCK)


def _six_bit_pairs(data: Bytes) -> tuple[Bytes, Bytes]:
    """Return eight scales and eight minimums of 6 bits that lie in twelve bytes."""
    low, high, both = data[..., :4], data[..., 4:8], data[..., 8:]
    six, four = np.uint8(63), np.uint8(15)
    scales = [low & six, both & four | low >> np.uint8(6) << np.uint8(4)]
    minimums = [high & six, both >> np.uint8(4) | high >> np.uint8(6) << np.uint8(4)]
    return np.concatenate(scales, -1), np.concatenate(minimums, -1)


def _q2_k_scales(block: Bytes) -> Parts:
    return {
        "scales": block[..., :16] & np.uint8(15),
        "minimums": block[..., :16] >> np.uint8(4),
        "outer": _float16(block[..., 80:82]),
        "outer_minimums": _float16(block[..., 82:84]),
    }


def _q2_k(block: Bytes) -> Codes:
    return _pairs(block[..., 16:80])


def _q3_k_scales(block: Bytes) -> Parts:
    packed = block[..., 96:108]
    upper = _fields(packed[..., 8:], 2).reshape(*packed.shape[:-1], 16) << np.uint8(4)
    scales = _nibbles(packed[..., :8]) | upper
    return {"scales": _signed(scales, 32), "outer": _float16(block[..., 108:110])}


def _q3_k(block: Bytes) -> Codes:
    high = block[..., :32]
    bits = _fields(high, 1).reshape(*high.shape[:-1], SUPER_BLOCK)  # of each eighth of 32
    codes = _pairs(block[..., 32:96]) | bits << np.uint8(2)
    return _signed(codes, 4)


def _two_levels(block: Bytes) -> Parts:
    scales, minimums = _six_bit_pairs(block[..., 4:16])
    return {
        "scales": scales,
        "minimums": minimums,
        "outer": _float16(block[..., :2]),
        "outer_minimums": _float16(block[..., 2:4]),
    }


def _q4_k(block: Bytes) -> Codes:
    return _nibble_chunks(block[..., 16:144])


def _q5_k(block: Bytes) -> Codes:
    high = block[..., 16:48]
    bits = _fields(high, 1).reshape(*high.shape[:-1], SUPER_BLOCK)
    return _nibble_chunks(block[..., 48:176]) | bits << np.uint8(4)


def _q6_k_scales(block: Bytes) -> Parts:
    return {
        "scales": np.ascontiguousarray(block[..., 192:208]).view(np.int8),
        "outer": _float16(block[..., 208:210]),
    }


def _q6_k(block: Bytes) -> Codes:
    low = block[..., :128].reshape(*block.shape[:-1], 2, 64)
    low_codes = _nibbles(low).reshape(*block.shape[:-1], SUPER_BLOCK)
    return _signed(low_codes | _pairs(block[..., 128:192]) << np.uint8(4), 32)


def _iq4_xs_scales(block: Bytes) -> Parts:
    low = block[..., 4:8, None] >> _LOW_HIGH & np.uint8(15)
    high = block[..., 2:4, None] >> _TWO_BITS & np.uint8(3)
    scales = low.reshape(*block.shape[:-1], 8) | high.reshape(*block.shape[:-1], 8) << np.uint8(4)
    return {"scales": _signed(scales, 32), "outer": _float16(block[..., :2])}


def _iq4_xs(block: Bytes) -> Codes:
    chunks = block[..., 8:].reshape(*block.shape[:-1], 8, 16)
    return _nibbles(chunks).reshape(*block.shape[:-1], SUPER_BLOCK)


# ---- the table -----------------------------------------------------------------------------------


def _integers(
    name: str,
    bits: int,
    columns: int,
    block_bytes: int,
    scales: Callable[[Bytes], Parts],
    codes: Callable[[Bytes], Codes],
) -> BlockType:
    """A type of whole numbers: one scale for 32 in float16, or two levels of them for 256."""
    is_super = name.endswith("_K")
    length = SUPER_BLOCK if is_super else BLOCK
    format = WeightFormat(
        name,
        "integer",
        bits,
        group_rows=1,
        group_columns=columns,
        scale="integer" if is_super else "float16",
        outer="float16" if is_super else None,
        stored_bits=8 * block_bytes / length,
        zero="minimum" if scales in (_scale_and_bias, _q2_k_scales, _two_levels) else "none",
    )
    return BlockType(format, length, block_bytes, scales, codes)


def _table(
    format: WeightFormat,
    block_bytes: int,
    scales: Callable[[Bytes], Parts],
    codes: Callable[[Bytes], Codes],
) -> BlockType:
    length = round(8 * block_bytes / format.stored_bits)
    return BlockType(format, length, block_bytes, scales, codes)


_ALL = (
    _integers("Q4_0", 4, 32, 18, _scale, _q4_0),
    _integers("Q4_1", 4, 32, 20, _scale_and_bias, _q4_1),
    _integers("Q5_0", 5, 32, 22, _scale, _q5_0),
    _integers("Q5_1", 5, 32, 24, _scale_and_bias, _q5_1),
    _integers("Q8_0", 8, 32, 34, _scale, _q8_0),
    _integers("Q2_K", 2, 16, 84, _q2_k_scales, _q2_k),
    _integers("Q3_K", 3, 16, 110, _q3_k_scales, _q3_k),
    _integers("Q4_K", 4, 32, 144, _two_levels, _q4_k),
    _integers("Q5_K", 5, 32, 176, _two_levels, _q5_k),
    _integers("Q6_K", 6, 16, 210, _q6_k_scales, _q6_k),
    _table(
        WeightFormat("IQ4_NL", "table", 4, 1, 32, "float16", 4.5, table=IQ4_NL),
        18,
        _scale,
        _iq4_nl,
    ),
    _table(
        WeightFormat(
            "IQ4_XS",
            "table",
            4,
            1,
            32,
            "integer",
            4.25,
            outer="float16",
            table=IQ4_NL,
        ),
        136,
        _iq4_xs_scales,
        _iq4_xs,
    ),
    _table(
        WeightFormat("MXFP4", "table", 4, 1, 32, "e8m0", 4.25, table=E2M1), 17, _exponent, _mxfp4
    ),
)

BLOCK_TYPES: Mapping[str, BlockType] = {each.format.name: each for each in _ALL}
"""The quantised types that are read, by their names."""
