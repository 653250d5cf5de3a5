"""Variants of the kernels of latent attention, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch import Source, Variant, element_of

from span_attention.layout import Format, SpanLayout
from span_attention.mla.kernels import (
    MLA_CODES,
    MLA_MERGE,
    MLA_NARROW,
    MLA_PLAN,
    MLA_SELECTED,
    MLA_WIDE,
)
from span_attention.mla.tuning import (
    CODES_REGISTERS,
    KEEPS,
    LEAVES,
    WIDE_REGISTERS,
    WIDEST,
    WIDEST_OF_CODES,
    Division,
)
from span_attention.published import LATENT, OWN

ARCHITECTURE: Final = "sm_90a"
VALUE_SIZE: Final = 512
_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "wgmma.cuh", "overlap.cuh")
_PLAN: Final = Source(
    "span_attention",
    "mla/plan.cu",
    headers=("reduce.cuh", "overlap.cuh"),
    own=("running_sum.cuh",),
    parts=("mla/plan.cuh",),
    kernels=(MLA_PLAN,),
)
_WIDE: Final = Source(
    "span_attention",
    "mla/wide.cu",
    headers=_HEADERS,
    own=("softmax.cuh",),
    parts=("mla/plan.cuh", "mla/work.cuh", "mla/wide.cuh"),
    kernels=(MLA_WIDE,),
)
_SELECTED: Final = Source(
    "span_attention",
    "mla/selected.cu",
    headers=_HEADERS,
    own=("softmax.cuh",),
    parts=("mla/plan.cuh", "mla/work.cuh", "mla/wide.cuh"),
    kernels=(MLA_SELECTED,),
)
_NARROW: Final = Source(
    "span_attention",
    "mla/narrow.cu",
    headers=_HEADERS,
    own=("softmax.cuh",),
    parts=("mla/plan.cuh", "mla/work.cuh", "mla/narrow.cuh"),
    kernels=(MLA_NARROW,),
)
_CODES: Final = Source(
    "span_attention",
    "mla/codes.cu",
    headers=_HEADERS,
    own=("softmax.cuh",),
    parts=("mla/plan.cuh", "mla/work.cuh", "mla/narrow.cuh"),
    kernels=(MLA_CODES,),
)
_MERGE: Final = Source(
    "span_attention",
    "mla/merge.cu",
    headers=("types.cuh", "reduce.cuh", "mma.cuh", "overlap.cuh"),
    own=("softmax.cuh",),
    parts=("mla/plan.cuh",),
    kernels=(MLA_MERGE,),
)


@dataclass(frozen=True, slots=True)
class MLAOptions:
    """A request for a variant: `dtype`, "float16" or "bfloat16", of queries and results.

    That of the spans, too, unless they hold `codes` of fp8. With `lse`, log-sum-exps of scores are
    a second result. Of `selected` tokens, only tiles of 64 lines.
    """

    dtype: str
    lse: bool = False
    codes: bool = False
    selected: bool = False

    @property
    def widest(self) -> int:
        """The lines of the largest tile."""
        return WIDEST_OF_CODES if self.codes else WIDEST


def options_for(dtype: str, layout: SpanLayout, *, lse: bool = False) -> MLAOptions:
    """Return the request for spans of this layout."""
    return MLAOptions(dtype, lse, codes=layout.format is Format.FP8)


def takes(options: MLAOptions, layout: SpanLayout, arch: str) -> bool:
    """Return True on Hopper for latents of 512 + 64 elements: floats of the queries' type, fp8."""
    return (
        arch == ARCHITECTURE
        and layout.format is (Format.FP8 if options.codes else OWN.get(options.dtype))
        and layout.values == layout.keys
        and (layout.kv_heads, layout.key_size, layout.value_size) == (1, LATENT, VALUE_SIZE)
    )


def plan_variant(division: Division) -> Variant:
    """Return the variant of mla_plan."""
    return Variant.of("mla_plan", _PLAN, {"TILE": division.tile, "OVERHEAD": division.overhead})


def attend_variant(options: MLAOptions, tile: int) -> Variant:
    """Return the variant of mla_wide, mla_narrow or mla_codes for tiles of that many lines."""
    macros = {**_macros(options, tile), "KEY_SIZE": LATENT}
    if options.codes:
        keeps, leaves = CODES_REGISTERS[tile]
        macros |= {"CODES": True, "KEEPS": keeps, "LEAVES": leaves}
        return Variant.of("mla_codes", _CODES, macros, (ARCHITECTURE,))
    if tile == WIDEST:
        name, source = ("mla_selected", _SELECTED) if options.selected else ("mla_wide", _WIDE)
        scores, keeps, leaves = WIDE_REGISTERS
        macros |= {"SCORES": scores, "KEEPS": keeps, "LEAVES": leaves}
        return Variant.of(name, source, {**macros, "SELECTED": options.selected}, (ARCHITECTURE,))
    macros |= {"KEEPS": KEEPS, "LEAVES": LEAVES}
    return Variant.of("mla_narrow", _NARROW, {**macros, "CODES": False}, (ARCHITECTURE,))


def merge_variant(options: MLAOptions, tile: int) -> Variant:
    """Return the variant of mla_merge."""
    return Variant.of("mla_merge", _MERGE, _macros(options, tile), (ARCHITECTURE,))


def _macros(options: MLAOptions, tile: int) -> dict[str, str | int | bool]:
    return {
        "T": element_of(options.dtype).name,
        "VALUE_SIZE": VALUE_SIZE,
        "TILE": tile,
        "LSE": options.lse,
    }
