"""The kernels of an indexer: their signatures, sources and variants."""

from __future__ import annotations

from typing import Final, NamedTuple

from spaninfer_kernel_launch import (
    Int32,
    Int64,
    Pointer,
    Signature,
    Source,
    TensorMap,
    Variant,
    element_of,
)

from span_attention.sparse.tuning import KEEPS, LEAVES, ScoreTile

ARCHITECTURE: Final = "sm_90a"


class ScoreArguments(NamedTuple):
    """Arguments of sparse_score."""

    scores: Pointer
    stride: Int64
    query_map: TensorMap
    key_map: TensorMap
    weights: Pointer
    span_tables: Pointer
    table_stride: Int64
    table_rows: Pointer
    lengths: Pointer
    tokens: Int32
    span_shift: Int32
    box_tokens: Int32


class SelectArguments(NamedTuple):
    """Arguments of sparse_select."""

    selected: Pointer
    scores: Pointer
    stride: Int64
    lengths: Pointer
    k: Int32
    most_held: Int32


SPARSE_SCORE: Final = Signature("sparse_score", ScoreArguments)
SPARSE_SELECT: Final = Signature("sparse_select", SelectArguments)
_SCORE: Final = Source(
    "span_attention",
    "sparse/score.cu",
    headers=("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "wgmma.cuh", "overlap.cuh"),
    kernels=(SPARSE_SCORE,),
)
_SELECT: Final = Source(
    "span_attention",
    "sparse/select.cu",
    headers=("reduce.cuh", "cluster.cuh", "overlap.cuh"),
    kernels=(SPARSE_SELECT,),
)
SELECT: Final = Variant.of("sparse_select", _SELECT, {})


def score_variant(dtype: str, tile: ScoreTile) -> Variant:
    """Return the variant of sparse_score for queries and keys of `dtype`."""
    macros: dict[str, str | int | bool] = {
        "T": element_of(dtype).name,
        "HEADS": tile.heads,
        "TOKENS": tile.tokens,
        "STAGES": tile.stages,
        "KEEPS": KEEPS,
        "LEAVES": LEAVES,
    }
    return Variant.of("sparse_score", _SCORE, macros, (ARCHITECTURE,))
