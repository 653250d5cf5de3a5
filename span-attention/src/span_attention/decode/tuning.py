"""Sizes of a decode -> tiles, loads of keys and values, grid. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import ShapeError

from span_attention.layout import ArrayStrides, Format, SpanLayout

MMA_TOKENS: Final = 16  # tokens that a tensor core instruction takes, as in csrc/decode_plan.cuh
PLAN_THREADS: Final = 512  # with 1024, ptxas 13.0 spills on sm_100a: 32 registers of 64
_PART_WORDS: Final = 32  # registers for loads in flight, of a tile of keys or of values
_PART_BYTES: Final = 16 * 32  # of a row of a part of a result: 16 elements of 8 heads
_STEP_BYTES: Final = 16  # shared memory of each element of 8 queries
_SHARED_BYTES: Final = 48 * 1024 - 128  # every GPU's limit for a block, less the small arrays
_MANY: Final = 16  # blocks of an item that is not long, as in csrc/decode_plan.cuh
_FEW: Final = 16  # requests
_MAX_STRIDE: Final = 2**32 - 1  # bytes: addresses are made of 32-bit strides
_WORK_BYTES: Final = 16  # struct Work of csrc/decode_plan.cuh, and struct Totals


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tuning of a decode: tiles of 16 tokens per warp, warps per block, blocks per multiprocessor.

    A block computes 8 `head_tiles` query heads of one key head together, and `value_tile` elements
    of their results; a tile of keys is loaded in `key_parts`, one of values in `value_parts`.
    """

    head_tiles: int
    value_tile: int
    tiles: int
    warps: int
    blocks_per_sm: int
    key_parts: int
    value_parts: int

    @property
    def tile_tokens(self) -> int:
        """Tokens of a tile, the unit in which work is divided."""
        return MMA_TOKENS * self.tiles


def tune(layout: SpanLayout, heads: int, requests: int) -> Tuning:
    """Return the tuning for `heads` query heads of up to `requests` requests on such spans.

    Raises ShapeError for sizes that no kernel takes.
    """
    check(layout, heads)
    # Results of 16 heads of more elements, or of 8 of more than 256, do not fit the registers.
    head_tiles = 2 if heads // layout.kv_heads > 8 and layout.value_size <= 128 else 1
    value_tile = _value_tile(layout.value_size)
    # Twelve warps with 8 KB each in flight, or eight with 12 KB of codes, keep the bandwidth busy:
    # 64 requests of 4096 tokens, 28/4 heads take 125 us, those of int8 72 (H200, 2026-11-21).
    is_wide = head_tiles == 2 or layout.value_size > 128 or layout.key_size > 128
    tiles = 1 if is_wide else _tiles(layout.format, requests)
    warps_per_sm = 8 if is_wide or tiles > 1 else 12
    part_bytes = head_tiles * _PART_BYTES * (1 + _rows(value_tile, layout.format))
    query_bytes = head_tiles * _STEP_BYTES * layout.key_size
    half = warps_per_sm // 2  # two blocks: of fewer and larger ones, items are in fewer parts
    warps = half if (half + 1) * part_bytes + half * query_bytes <= _SHARED_BYTES else 2
    return Tuning(
        head_tiles=head_tiles,
        value_tile=value_tile,
        tiles=tiles,
        warps=warps,
        blocks_per_sm=warps_per_sm // warps,
        key_parts=1 if tiles > 1 else _parts(_loads(layout.key_size, layout.format, 4), 2),
        value_parts=1 if tiles > 1 else _parts(_loads(value_tile, layout.format, 8), 4),
    )


def check(layout: SpanLayout, heads: int) -> None:
    """Raise ShapeError for sizes that no kernel takes."""
    if heads < 1 or heads % layout.kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {layout.kv_heads} key heads")
    least = 32 if layout.format is Format.UINT4 else 16
    for name, size in (("key_size", layout.key_size), ("value_size", layout.value_size)):
        if size % least:
            raise ShapeError(
                f"{name} is {size}; decode takes multiples of {least} of {layout.format.label}"
            )
    between_heads = max(place.head_stride for place in places(layout) if place)
    for name, stride in (("span", layout.span_stride), ("head", between_heads)):
        if stride > _MAX_STRIDE:
            raise ShapeError(f"{stride} bytes from {name} to {name}; decode takes less than 4 GiB")


def places(
    layout: SpanLayout,
) -> tuple[ArrayStrides, ArrayStrides, ArrayStrides | None, ArrayStrides | None]:
    """Return the strides of keys, values, and the scales of both in a span."""
    return layout.keys, layout.values, layout.key_scales, layout.value_scales


def items(layout: SpanLayout, heads: int, tuning: Tuning) -> int:
    """Return the number of items of a request: heads and elements computed independently."""
    groups = -(-heads // (layout.kv_heads * 8 * tuning.head_tiles))
    return layout.kv_heads * groups * (layout.value_size // tuning.value_tile)


def plan_bytes(requests: int, tuning: Tuning, blocks: int) -> int:
    """Return the bytes of a plan: totals, work of warps, orders of blocks, first units, flags."""
    return (1 + blocks * (1 + tuning.warps)) * _WORK_BYTES + 4 * (requests + 1 + _parts_of(blocks))


def workspace_bytes(layout: SpanLayout, tuning: Tuning, blocks: int) -> int:
    """Return the bytes of blocks' partial results of items."""
    rows = _rows(tuning.value_tile, layout.format)
    return _parts_of(blocks) * tuning.head_tiles * (1 + rows) * _PART_BYTES


def _parts_of(blocks: int) -> int:
    """Return the number of partial results: one per block, and one per end of a long item."""
    return blocks + blocks // (_MANY + 1) + 1


def _tiles(format: Format, requests: int) -> int:
    """Return the size of a tile, in units of 16 tokens, for heads of up to 128 elements."""
    # With 48 instead of 32 tokens, int8 takes 72 instead of 76 us at 64 requests of 4096 tokens and
    # 28/4 heads; with 64, int8 spills, and fp8 where a lane cannot load 16 bytes at once. uint4
    # takes as long with 80 as with 64.
    if format.bits < 16:
        return 4 if format is Format.UINT4 else 3
    # Floats: fewer warps with as much in flight leave items in fewer parts, 11.9 instead of 13.5 us
    # for 1 request of 8192 tokens and 6.8 instead of 8.0 for 8 of 592; but 32 of 592 give each warp
    # three tiles of either size, 15.7 instead of 14.4.
    return 2 if requests <= _FEW else 1


def _value_tile(size: int) -> int:
    """Return the most elements of a result that an item has: equal parts, 256 at most.

    >>> _value_tile(128), _value_tile(512), _value_tile(576)
    (128, 256, 192)
    """
    return next(
        size // parts for parts in range(1, size) if size % parts == 0 and size <= 256 * parts
    )


def _loads(size: int, format: Format, lanes: int) -> list[int]:
    """Return the words (4 bytes) of each of a lane's loads of a row that `lanes` lanes share."""
    row = size * format.bits // 8
    widest = next(words for words in (4, 2, 1) if row // lanes % (4 * words) == 0 or words == 1)
    return [widest] * -(-row // (lanes * 4 * widest))


def _rows(size: int, format: Format) -> int:
    """Return the rows of 16 elements in which a warp holds a result of `size`, filled or not."""
    return sum(_loads(size, format, 8)) * 16 // format.bits


def _parts(loads: list[int], rows: int) -> int:
    """Return the fewest equal parts of `loads` that fit the registers meant for them."""
    return next(
        parts
        for parts in range(1, len(loads) + 1)
        if len(loads) % parts == 0
        and (rows * sum(loads) // parts <= _PART_WORDS or parts == len(loads))
    )
