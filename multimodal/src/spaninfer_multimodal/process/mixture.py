"""Tokens as mixtures of a tower's rows: parts put together, scaled down, and ended line by line.

Source: the features that LLaVA-OneVision of transformers 5.23 packs, and torch's bilinear
interpolation, whose outer corners lie on each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]


class Mixture(NamedTuple):
    """The rows that make up each token, int32 [tokens k], and their weights float32 [tokens k].

    Rows count those of all tiles in order; behind the last one comes the model's own line end.
    """

    rows: Ints
    weights: NDArray[np.float32]


def plain(rows: Ints) -> Mixture:
    """Return tokens that are rows as they come."""
    return Mixture(rows[:, None], np.ones((len(rows), 1), np.float32))


def scaled(rows: Ints, height: int, width: int) -> Mixture:
    """Return rows[H W] scaled to height x width by bilinear interpolation, line by line."""
    (top, low, down), (left, right, along) = (
        _taps(have, wanted) for have, wanted in zip(rows.shape, (height, width), strict=True)
    )
    corners = [rows[line][:, column] for line in (top, low) for column in (left, right)]
    shares = [y[:, None] * x for y in (1 - down, down) for x in (1 - along, along)]
    return Mixture(
        np.stack(corners, -1).reshape(-1, 4).astype(np.int32),
        np.stack(shares, -1).reshape(-1, 4).astype(np.float32),
    )


def _taps(have: int, wanted: int) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Return the two places that each of the wanted ones lies between, and how far along."""
    at = np.maximum((np.arange(wanted) + 0.5) * (have / wanted) - 0.5, 0)
    first = at.astype(np.int32)
    return first, np.minimum(first + 1, have - 1), at - first


def with_line_ends(mixture: Mixture, width: int, end: int) -> Mixture:
    """Return a mixture with row `end` behind every `width` tokens."""
    taps = mixture.rows.shape[1]
    rows = mixture.rows.reshape(-1, width, taps)
    weights = mixture.weights.reshape(-1, width, taps)
    ends, shares = np.full((len(rows), 1, taps), end, np.int32), np.zeros((len(rows), 1, taps))
    shares[..., 0] = 1
    return Mixture(
        np.concatenate([rows, ends], 1).reshape(-1, taps),
        np.concatenate([weights, shares], 1).reshape(-1, taps).astype(np.float32),
    )


def joined(*parts: Mixture) -> Mixture:
    """Return mixtures one behind the other; those of fewer rows get more, of no weight."""
    taps = max(part.rows.shape[1] for part in parts)

    def filled(array: NDArray[Any]) -> NDArray[Any]:
        return np.pad(array, ((0, 0), (0, taps - array.shape[1])))

    return Mixture(
        np.concatenate([filled(part.rows) for part in parts]),
        np.concatenate([filled(part.weights) for part in parts]),
    )
