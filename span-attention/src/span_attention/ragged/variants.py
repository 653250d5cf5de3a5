"""Every variant of ragged attention, for tests and surveys that compile them without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from spaninfer_kernel_launch import Variant

from span_attention.prefill import variants as prefill
from span_attention.ragged.options import RaggedOptions, general_variant, hopper_variant

PLAN: Final = Variant.of("prefill_plan", prefill.PLAN.source, {"RAGGED": True})
SIZES: Final = (64, 72, 80, 128)  # of heads of published towers

ODD: Final = (72,)
BIASED: Final = 64  # of heads of MPNet


def _general(options: RaggedOptions) -> Iterator[Variant]:
    for shared_bytes, architectures in prefill.BY_SHARED_BYTES.items():
        variant, _ = general_variant(options, shared_bytes)
        if able := tuple(a for a in architectures if a in variant.architectures):
            yield replace(variant, architectures=able)


def _variants() -> Iterator[Variant]:
    yield PLAN
    for size, dtype in product(SIZES, ("float16", "bfloat16")):
        options = RaggedOptions(dtype, size)
        if size in ODD:
            yield from _general(options)
        if (special := hopper_variant(options)) is not None:
            yield special[0]
    biased = RaggedOptions("bfloat16", BIASED, biased=True)
    yield from _general(biased)
    if (special := hopper_variant(biased)) is not None:
        yield special[0]


VARIANTS: Final = tuple(_variants())
"""Both element types with the sizes of heads of published towers; of the general kernel one that
is no multiple of 16, since the others are prefill's; and one with biases.
"""
