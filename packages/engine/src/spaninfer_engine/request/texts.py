"""Texts as an encoder takes them, and what becomes of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import normalize_rows, sigmoid, softmax

from spaninfer_engine.errors import InvalidSampling
from spaninfer_engine.request.request import TokenIds

Task: TypeAlias = Literal["generate", "embed", "score", "classify"]
Rows = NDArray[np.float32]
Errors: TypeAlias = "dict[int, Exception]"  # of texts that have no row, by their numbers


@dataclass(frozen=True, slots=True)
class Text:
    """The token ids of a text or of a pair; `second_from` is where a pair's second types begin."""

    ids: TokenIds
    second_from: int | None = None


def vectors_of(rows: Rows, *, normalise: bool, dimensions: int | None = None) -> Rows:
    """Return rows [N C] as vectors: the first `dimensions` channels, then to length 1 if asked.

    Cutting comes first, as for models trained so that a beginning of a vector is one by itself
    (Kusupati et al. 2022, Matryoshka). Raises InvalidSampling for other than 1 to C dimensions.
    """
    if dimensions is not None:
        if not 1 <= dimensions <= rows.shape[1]:
            raise InvalidSampling("dimensions", dimensions, f"1 to {rows.shape[1]}")
        rows = np.ascontiguousarray(rows[:, :dimensions])
    return normalize_rows(rows) if normalise else rows


def probabilities_of(logits: Rows, activation: Literal["sigmoid", "softmax", "identity"]) -> Rows:
    """Return logits [N L] as a classifier's config wants them shown."""
    match activation:
        case "sigmoid":
            return sigmoid(logits)
        case "softmax":
            return softmax(logits)
        case "identity":
            return logits
