"""Sizes of a decode -> how keys and values are read, and how many blocks share the work. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import ShapeError

from span_attention.layout import Format, SpanLayout

TOGETHER: Final = 16  # tokens that a tensor core instruction takes, as in csrc/decode_plan.cuh
PLAN_THREADS: Final = 512  # with 1024, ptxas 13.0 spills on sm_100a: 32 registers of 64
_PART_WORDS: Final = 32  # registers for what is under way of a tile of keys, or of values
_WORK_BYTES: Final = 32  # struct Work of csrc/decode_plan.cuh


@dataclass(frozen=True, slots=True)
class Tuning:
    """How a decode runs: tiles of 16 tokens per warp, warps per block, blocks per multiprocessor.

    A block computes 8 `head_tiles` query heads of one key head together, and `value_tile` elements
    of their results; a tile of keys is loaded in `key_parts`, one of values in `value_parts`; work
    is divided in units of `unit` tokens.
    """

    head_tiles: int
    value_tile: int
    tiles: int
    warps: int
    blocks_per_sm: int
    key_parts: int
    value_parts: int
    unit: int


def tune(layout: SpanLayout, heads: int) -> Tuning:
    """Return how `heads` query heads are computed on spans of this layout.

    Raises ShapeError for sizes that no kernel takes.
    """
    check(layout, heads)
    # Results of 16 heads of more elements, or of 8 of more than 256, do not fit the registers.
    head_tiles = 2 if heads // layout.kv_heads > 8 and layout.value_size <= 128 else 1
    value_tile = _value_tile(layout.value_size)
    # Eight warps keep enough 16-bit floats under way for all of the bandwidth: 64 requests of 4096
    # tokens, 28/4 heads take 132 us, with twelve warps 137 (H200, 2026-11-21). Tiles of codes are
    # smaller, so these get twelve.
    is_wide = head_tiles == 2 or layout.value_size > 128 or layout.key_size > 128
    blocks_per_sm = 2 if is_wide or layout.format.num_scales == 0 else 3
    return Tuning(
        head_tiles=head_tiles,
        value_tile=value_tile,
        tiles=1,
        warps=4,
        blocks_per_sm=blocks_per_sm,
        key_parts=_parts(_loads(layout.key_size, layout.format, 4), 2),
        value_parts=_parts(_loads(value_tile, layout.format, 8), 4),
        unit=4 * TOGETHER,
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


def items(layout: SpanLayout, heads: int, tuning: Tuning) -> int:
    """Return how many items a request has: heads and elements that blocks compute apart."""
    groups = -(-heads // (layout.kv_heads * 8 * tuning.head_tiles))
    return layout.kv_heads * groups * (layout.value_size // tuning.value_tile)


def plan_bytes(requests: int, items: int, blocks: int) -> int:
    """Return the bytes of a plan: the blocks' work, the requests' first units, the counters."""
    return blocks * _WORK_BYTES + 4 * (requests + 1 + requests * items)


def workspace_bytes(tuning: Tuning, blocks: int) -> int:
    """Return the bytes of the parts that blocks leave: two each, with two sums per head."""
    return blocks * 2 * 4 * 8 * tuning.head_tiles * (2 + tuning.value_tile)


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


def _parts(loads: list[int], rows: int) -> int:
    """Return the fewest equal parts of `loads` that fit the registers meant for them."""
    return next(
        parts
        for parts in range(1, len(loads) + 1)
        if len(loads) % parts == 0
        and (rows * sum(loads) // parts <= _PART_WORDS or parts == len(loads))
    )
