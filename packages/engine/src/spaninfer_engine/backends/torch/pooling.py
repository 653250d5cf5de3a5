"""Pooling of hidden states: all texts of a step at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spaninfer_engine.spec.pooling_nodes import PoolKind

PIECE_ROWS = 64  # that one after the other are reduced; a text's pieces are reduced side by side

Ints = NDArray[np.int32]


class TextRows(NamedTuple):
    """The places of texts among rows, as tensors of the device.

    Texts are cut into pieces of at most PIECE_ROWS, of which each has some.
    """

    starts: Tensor  # [R] first row
    ends: Tensor  # [R] last row
    lengths: Tensor  # [R] float32
    piece_lengths: Tensor  # [P]
    num_pieces: Tensor  # [R]
    places: Tensor  # [T] place of a row in its text, from 1 on, float32

    @classmethod
    def of(cls, bounds: Ints, put: Callable[[NDArray[Any]], Tensor]) -> TextRows:
        """Return where texts lie of which r is the rows bounds[r] .. bounds[r + 1]."""
        starts, lengths = bounds[:-1], np.diff(bounds)
        pieces, counts = pieces_of(lengths)
        places = np.arange(1, bounds[-1] + 1) - np.repeat(starts, lengths)
        return cls(
            starts=put(starts),
            ends=put(bounds[1:] - 1),
            lengths=put(lengths.astype(np.float32)),
            piece_lengths=put(pieces),
            num_pieces=put(counts),
            places=put(places.astype(np.float32)),
        )


def pieces_of(lengths: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths [P] of texts' pieces, and how many each text has [R].

    >>> [each.tolist() for each in pieces_of(np.array([3, 130], np.int32))]
    [[3, 64, 64, 2], [1, 3]]
    """
    counts = -(-lengths // PIECE_ROWS)
    pieces = np.full(counts.sum(), PIECE_ROWS)
    pieces[np.cumsum(counts) - 1] = lengths - PIECE_ROWS * (counts - 1)
    return pieces, counts.astype(np.int64)


def pool_texts(x: Tensor, texts: TextRows, kind: PoolKind) -> Tensor:
    """Return the rows of every text of x[T C] as one vector, [R C] float32; see op_reference.pool.

    The order in which a text's rows are added depends on its own length alone.
    """
    match kind:
        case "cls":
            return x[texts.starts].float()
        case "last":
            return x[texts.ends].float()
        case "max":
            return _reduced(x.float(), texts, "max")
        case "mean":
            return _reduced(x.float(), texts, "sum") / texts.lengths[:, None]
        case "mean_sqrt":
            return _reduced(x.float(), texts, "sum") / texts.lengths.sqrt()[:, None]
        case "weighted_mean":
            weights = texts.lengths * (texts.lengths + 1) / 2
            return _reduced(x.float() * texts.places[:, None], texts, "sum") / weights[:, None]


def _reduced(x: Tensor, texts: TextRows, how: str) -> Tensor:
    """Return the sums, or the largest, of every text's rows [R C]."""
    pieces = torch.segment_reduce(x, how, lengths=texts.piece_lengths, unsafe=True)
    return torch.segment_reduce(pieces, how, lengths=texts.num_pieces, unsafe=True)
