"""Blocks of GGUF's quantised types, taken apart.

A row is a sequence of blocks, each with its own scales. What bytes mean is ggml's definition
(ggml-common.h and ggml-quants.c of llama.cpp); the gguf package's `dequantize` computes the same,
and tests/load/quantised/test_gguf_blocks.py compares the two bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import E2M1, QuantizedWeight, WeightFormat

from spaninfer_engine.load.quantised.threads import in_threads

Bytes: TypeAlias = NDArray[np.uint8]
Parts: TypeAlias = dict[str, NDArray[np.generic]]  # fields of QuantizedWeight, [N B ...] each

BLOCK, SUPER_BLOCK = 32, 256  # weights
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

_LOW_HIGH = np.array([0, 4], np.uint8)
_TWO_BITS = np.array([0, 2, 4, 6], np.uint8)
_EIGHT = np.arange(8, dtype=np.uint8)
_BYTES_AT_ONCE = 1 << 20  # of a chunk; smaller ones cost more in threads than caches spare


@dataclass(frozen=True, slots=True)
class BlockType:
    """A GGUF type: its format, bytes per block of `length` weights, and what takes them apart."""

    format: WeightFormat
    length: int
    block_bytes: int
    split: Callable[[Bytes], Parts]

    def read(self, rows: Bytes, columns: int) -> QuantizedWeight:
        """Return the weight[... N K] of rows of blocks, uint8 [... N bytes]; several threads take
        many apart.
        """
        lines = rows.reshape(-1, rows.shape[-1])
        first = self._parts(lines[:1], columns)
        whole = {
            name: np.empty((len(lines), part.shape[1]), part.dtype) for name, part in first.items()
        }

        def fill(some: slice) -> None:
            for name, part in self._parts(lines[some], columns).items():
                whole[name][some] = part

        in_threads(fill, len(lines), max(1, _BYTES_AT_ONCE // lines.shape[1]))
        parts = {name: part.reshape(*rows.shape[:-1], -1) for name, part in whole.items()}
        return QuantizedWeight(self.format, **parts)  # type: ignore[arg-type]

    def _parts(self, lines: Bytes, columns: int) -> Parts:
        """Return fields [N n] of rows of blocks, [N bytes]."""
        blocks = lines.reshape(len(lines), columns // self.length, self.block_bytes)
        return {name: part.reshape(len(lines), -1) for name, part in self.split(blocks).items()}


def _float16(data: Bytes) -> NDArray[np.generic]:
    """Return numbers [... n] of bytes [... 2n], as float32."""
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """Return codes [... 2n] of bytes [... n]: the low halves, then the high ones."""
    halves: Bytes = data[..., None, :] >> _LOW_HIGH[:, None] & np.uint8(15)
    return halves.reshape(*data.shape[:-1], -1)


def _fifth_bits(data: Bytes) -> Bytes:
    """Return the bits of a little-endian word of 32, as 16 of codes [... 32]."""
    bits: Bytes = data[..., :, None] >> _EIGHT & np.uint8(1)
    return bits.reshape(*data.shape[:-1], 32) << np.uint8(4)


def _signed(codes: Bytes, middle: int) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(middle)


# ---- blocks of 32 --------------------------------------------------------------------------------


def _q4_0(block: Bytes) -> Parts:
    return {"scales": _float16(block[..., :2]), "codes": _signed(_nibbles(block[..., 2:]), 8)}


def _q4_1(block: Bytes) -> Parts:
    return _with_minimum(block, _nibbles(block[..., 4:]))


def _q5_0(block: Bytes) -> Parts:
    codes = _nibbles(block[..., 6:]) | _fifth_bits(block[..., 2:6])
    return {"scales": _float16(block[..., :2]), "codes": _signed(codes, 16)}


def _q5_1(block: Bytes) -> Parts:
    return _with_minimum(block, _nibbles(block[..., 8:]) | _fifth_bits(block[..., 4:8]))


def _with_minimum(block: Bytes, codes: Bytes) -> Parts:
    """Scale d and bias m, which is added: a minimum of -m."""
    scales, bias = _float16(block[..., :2]), _float16(block[..., 2:4])
    return {"scales": scales, "minimums": np.negative(bias), "codes": codes}


def _q8_0(block: Bytes) -> Parts:
    return {"scales": _float16(block[..., :2]), "codes": block[..., 2:].view(np.int8)}


def _iq4_nl(block: Bytes) -> Parts:
    return {"scales": _float16(block[..., :2]), "codes": _nibbles(block[..., 2:])}


def _mxfp4(block: Bytes) -> Parts:
    scales = np.ldexp(np.float32(1), block[..., 0].astype(np.int32) - 127)
    return {"scales": scales, "codes": _nibbles(block[..., 1:])}


# ---- blocks of 256 -------------------------------------------------------------------------------


def _pairs(data: Bytes) -> Bytes:
    """Return 2-bit codes [... 256] of bytes [... 64]: 32 bytes give four times 32 in a row."""
    halves = data.reshape(*data.shape[:-1], 2, 1, 32)
    codes: Bytes = halves >> _TWO_BITS[:, None] & np.uint8(3)
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


def _q2_k(block: Bytes) -> Parts:
    return {
        "scales": block[..., :16] & np.uint8(15),
        "minimums": block[..., :16] >> np.uint8(4),
        "codes": _pairs(block[..., 16:80]),
        "outer": _float16(block[..., 80:82]),
        "outer_minimums": _float16(block[..., 82:84]),
    }


def _q3_k(block: Bytes) -> Parts:
    high, packed = block[..., :32], block[..., 96:108]
    bits = high[..., None, :] >> _EIGHT[:, None] & np.uint8(1)  # of each eighth of 32
    codes = _pairs(block[..., 32:96]) | bits.reshape(*high.shape[:-1], 256) << np.uint8(2)
    upper = packed[..., None, 8:] >> _TWO_BITS[:, None] & np.uint8(3)
    scales = _nibbles(packed[..., :8]) | upper.reshape(*packed.shape[:-1], 16) << np.uint8(4)
    return {
        "scales": _signed(scales, 32),
        "codes": _signed(codes, 4),
        "outer": _float16(block[..., 108:110]),
    }


def _q4_k(block: Bytes) -> Parts:
    return _two_levels(block, _nibble_chunks(block[..., 16:144]))


def _q5_k(block: Bytes) -> Parts:
    high = block[..., 16:48]
    bits = high[..., None, :] >> _EIGHT[:, None] & np.uint8(1)
    codes = _nibble_chunks(block[..., 48:176])
    return _two_levels(block, codes | bits.reshape(*high.shape[:-1], 256) << np.uint8(4))


def _two_levels(block: Bytes, codes: Bytes) -> Parts:
    scales, minimums = _six_bit_pairs(block[..., 4:16])
    return {
        "scales": scales,
        "minimums": minimums,
        "codes": codes,
        "outer": _float16(block[..., :2]),
        "outer_minimums": _float16(block[..., 2:4]),
    }


def _q6_k(block: Bytes) -> Parts:
    low = block[..., :128].reshape(*block.shape[:-1], 2, 64)
    low_codes = _nibbles(low).reshape(*block.shape[:-1], SUPER_BLOCK)
    codes = low_codes | _pairs(block[..., 128:192]) << np.uint8(4)
    return {
        "scales": np.ascontiguousarray(block[..., 192:208]).view(np.int8),
        "codes": _signed(codes, 32),
        "outer": _float16(block[..., 208:210]),
    }


def _iq4_xs(block: Bytes) -> Parts:
    low = block[..., 4:8, None] >> _LOW_HIGH & np.uint8(15)
    high = block[..., 2:4, None] >> _TWO_BITS & np.uint8(3)
    scales = low.reshape(*block.shape[:-1], 8) | high.reshape(*block.shape[:-1], 8) << np.uint8(4)
    chunks = block[..., 8:].reshape(*block.shape[:-1], 8, 16)
    return {
        "scales": _signed(scales, 32),
        "codes": _nibbles(chunks).reshape(*block.shape[:-1], SUPER_BLOCK),
        "outer": _float16(block[..., :2]),
    }


# ---- the table -----------------------------------------------------------------------------------


def _integers(
    name: str,
    bits: int,
    columns: int,
    block_bytes: int,
    split: Callable[[Bytes], Parts],
    minimum: bool = False,
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
        zero="minimum" if minimum else "none",
    )
    return BlockType(format, length, block_bytes, split)


def _table(format: WeightFormat, block_bytes: int, split: Callable[[Bytes], Parts]) -> BlockType:
    return BlockType(format, round(8 * block_bytes / format.stored_bits), block_bytes, split)


_ALL = (
    _integers("Q4_0", 4, 32, 18, _q4_0),
    _integers("Q4_1", 4, 32, 20, _q4_1, minimum=True),
    _integers("Q5_0", 5, 32, 22, _q5_0),
    _integers("Q5_1", 5, 32, 24, _q5_1, minimum=True),
    _integers("Q8_0", 8, 32, 34, _q8_0),
    _integers("Q2_K", 2, 16, 84, _q2_k, minimum=True),
    _integers("Q3_K", 3, 16, 110, _q3_k),
    _integers("Q4_K", 4, 32, 144, _q4_k, minimum=True),
    _integers("Q5_K", 5, 32, 176, _q5_k, minimum=True),
    _integers("Q6_K", 6, 16, 210, _q6_k),
    _table(
        WeightFormat("IQ4_NL", "table", 4, 1, 32, "float16", 4.5, table=tuple(map(float, IQ4))),
        18,
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
            table=tuple(map(float, IQ4)),
        ),
        136,
        _iq4_xs,
    ),
    _table(WeightFormat("MXFP4", "table", 4, 1, 32, "e8m0", 4.25, table=E2M1), 17, _mxfp4),
)

BLOCK_TYPES: Mapping[str, BlockType] = {each.format.name: each for each in _ALL}
"""The quantised types that are read, by their names."""
