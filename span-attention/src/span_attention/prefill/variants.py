"""Every variant of prefill, for tests and surveys that compile them without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from spaninfer_kernel_launch import Source, Variant

from span_attention.prefill import general, hopper
from span_attention.prefill.kernels import PREFILL_PLAN
from span_attention.prefill.options import PrefillOptions
from span_attention.published import OWN, SIZES, layout_of
from span_attention.quantize import CODES

PLAN: Final = Variant.of(
    "prefill_plan",
    Source(
        "span_attention",
        "prefill/plan.cu",
        headers=("reduce.cuh", "overlap.cuh"),
        own=("running_sum.cuh",),
        kernels=(PREFILL_PLAN,),
    ),
    {"RAGGED": False},
)

# Shared memory of a block decides on the tiles: that of Turing, of small and of large GPUs of the
# Ampere and Ada generations (as of consumers' Blackwell), and of Hopper and Blackwell.
BY_SHARED_BYTES: Final = {
    65_536: ("sm_75",),
    101_376: ("sm_80", "sm_120"),
    166_912: ("sm_80",),
    232_448: ("sm_90a", "sm_100a"),
}


def _variants() -> Iterator[Variant]:
    yield PLAN
    for (key_size, value_size), (dtype, own), lse in product(SIZES, OWN.items(), (False, True)):
        for format in (own, *CODES):
            layout = layout_of(key_size, value_size, format)
            for shared_bytes, architectures in BY_SHARED_BYTES.items():
                variant, _ = general.variant_for(PrefillOptions(dtype, lse), layout, shared_bytes)
                able = tuple(a for a in architectures if a in variant.architectures)
                if able:
                    yield replace(variant, architectures=able)
            for splits in (False, True):
                special = hopper.variant_for(PrefillOptions(dtype, lse), layout, splits=splits)
                if special is not None:
                    yield special[0]


VARIANTS: Final = tuple(_variants())
"""Every element type and format with the sizes of heads of published models, and lse or not."""
