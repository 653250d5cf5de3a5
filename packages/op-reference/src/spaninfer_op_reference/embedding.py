"""Embeddings of tokens, positions and token types, and vectors from elsewhere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from spaninfer_op_reference.arrays import Floats, Ints


def embed(ids: Ints, table: Floats, scale: float = 1.0) -> Floats:
    """[T C]: rows of table[V C] by ids[T], times scale. Learned positions are the same."""
    return table[ids] * scale


def sinusoidal(positions: Ints, dim: int, dtype: DTypeLike = np.float64) -> Floats:
    """[T dim]: [sin | cos] of position * 10000^(-i / (dim/2 - 1)), i = 0 .. dim/2 - 1.

    The tensor2tensor form, which M2M100 and Whisper use; Vaswani et al. 2017 interleave, and
    divide by dim/2.
    """
    rates = np.exp(np.arange(dim // 2, dtype=dtype) * (-math.log(1e4) / (dim // 2 - 1)))
    angles = positions[:, None].astype(dtype) * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)


def add_types(hidden: Floats, types: Ints, table: Floats) -> Floats:
    """[T C]: hidden[T C] plus the rows of table by types[T] (BERT's token types)."""
    total: Floats = hidden + table[types]
    return total


def replace_rows(hidden: Floats, rows: Ints, vectors: Floats) -> Floats:
    """[T C]: hidden[T C] with vectors[N C] in place of rows[N] (media embeddings)."""
    replaced = hidden.copy()
    replaced[rows] = vectors
    return replaced


def add_rows(hidden: Floats, rows: Ints, vectors: Floats) -> Floats:
    """[T C]: hidden[T C] plus vectors[N C] at rows[N], which differ (Qwen3-VL's deepstack)."""
    total = hidden.copy()
    total[rows] += vectors
    return total


def blend_rows(table: Floats, rows: Ints, weights: Floats) -> Floats:
    """[T C]: sums of the rows[T k] of table[P C], by weights[T k] (interpolated positions)."""
    blended: Floats = np.einsum("tk,tkc->tc", weights, table[rows].astype(weights.dtype))
    return blended


def join_rows(x: Floats, count: int) -> Floats:
    """[T/count count*C]: every `count` neighbouring rows of x[T C] side by side."""
    return x.reshape(len(x) // count, count * x.shape[1])
