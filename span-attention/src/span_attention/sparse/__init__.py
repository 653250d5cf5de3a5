"""Sparse attention: keys that an indexer selects (DeepSeek-V3.2), and latent attention to them.

`select_keys` scores all keys that a token sees and selects the best; `attend_selected` reads the
latents at their positions, through spans. Lengths and tables are read on the GPU alone, so that
both may be captured into CUDA graphs and replayed for other lengths.
"""

from __future__ import annotations

from itertools import product

from spaninfer_kernel_launch import Variant

from span_attention.published import OWN
from span_attention.sparse.attend import (
    BatchSelected,
    attend_selected,
    has_attention,
    prepare_attention,
)
from span_attention.sparse.kernels import SELECT, score_variant
from span_attention.sparse.readers import Readers
from span_attention.sparse.select import has_selection, prepare_selection, select_keys
from span_attention.sparse.tuning import HEADS, TOKENS_TOGETHER, ScoreTile

VARIANTS: tuple[Variant, ...] = (
    SELECT,
    *(
        score_variant(dtype, ScoreTile(heads, tokens))
        for dtype, heads, tokens in product(OWN, HEADS, (1, TOKENS_TOGETHER))
    ),
)
"""Both element types, numbers of heads, and tokens that read together."""

__all__ = [
    "VARIANTS",
    "BatchSelected",
    "Readers",
    "attend_selected",
    "has_attention",
    "has_selection",
    "prepare_attention",
    "prepare_selection",
    "select_keys",
]
