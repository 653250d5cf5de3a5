"""Multi-head latent attention (MLA) over spans of latents, absorbed: decode, speculation, prefill.

`BatchMLA` plans a step on the GPU, once for all layers, and runs a layer. Lengths and tables are
read on the GPU alone, so that its kernels may be captured into CUDA graphs and replayed for other
lengths.
"""

from __future__ import annotations

from itertools import product

from spaninfer_kernel_launch import Variant

from span_attention.mla.batch import BatchMLA
from span_attention.mla.prepared import PreparedMLA, prepare, prepare_every_size
from span_attention.mla.tuning import TILES, WIDEST, WIDEST_OF_CODES, Division, divide
from span_attention.mla.variant import (
    MLAOptions,
    attend_variant,
    merge_variant,
    options_for,
    plan_variant,
    takes,
)
from span_attention.published import OWN

VARIANTS: tuple[Variant, ...] = (
    *(plan_variant(Division(tile, lanes=1, parts=1)) for tile in TILES),
    plan_variant(Division(WIDEST, lanes=1, parts=1, few=True)),
    *(
        variant(MLAOptions(dtype, lse), tile)
        for variant in (attend_variant, merge_variant)
        for dtype, lse, tile in product(OWN, (False, True), TILES)
    ),
    *(attend_variant(MLAOptions(dtype, selected=True), WIDEST) for dtype in OWN),
    *(
        attend_variant(MLAOptions(dtype, lse, codes=True), tile)
        for dtype, lse, tile in product(OWN, (False, True), TILES)
        if tile <= WIDEST_OF_CODES
    ),
)
"""Every element type and size of a tile, and lse or not."""

__all__ = [
    "VARIANTS",
    "BatchMLA",
    "Division",
    "MLAOptions",
    "PreparedMLA",
    "divide",
    "options_for",
    "prepare",
    "prepare_every_size",
    "takes",
]
