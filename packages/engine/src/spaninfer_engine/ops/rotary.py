"""The angles of one rotary embedding, token by token."""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import cos_sin, frequencies

from spaninfer_engine.ops.step import Rotation
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.spec.frequencies import Frequencies
from spaninfer_engine.step.batch import Batch

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_STATES = 256  # frequencies of this many lengths are kept; "dynamic" has one per length


class Rotary:
    """Cosines and sines of positions, in float32 as models are trained with.

    Most frequencies are the same at every length. Where they are not, each row's depend on a
    length of its own: the request's as far as it had come, at least the planned one; for
    ntk_prompt the planned one, which is the prompt's.
    """

    def __init__(self, rope: Rope) -> None:
        self._rope = rope
        changes = bool(rope.frequencies.state(sys.maxsize))
        self._fixed = None if changes else _at(rope.frequencies, 1)
        self.num_axes = len(rope.sections) or 1

    def angles(self, places: Ints, position: Ints, planned_len: Ints) -> Rotation[Floats]:
        """Return cos and sin [T D/2] at places[axes T] for rows of requests.

        position[T] is a row's index in its request, planned_len[T] the slice's `rope_seq_len`.
        """
        rope = self._rope
        inverse, factor = self._inverse(position, planned_len)
        positions = places if rope.sections else places[0]
        cos, sin = cos_sin(positions, inverse, factor, rope.sections, rope.mrope_interleaved)
        return Rotation(cos, sin)

    def of_batch(self, batch: Batch, places: Ints) -> Rotation[Floats]:
        """Return the same for the tokens of a batch; places[axes T] are its `Batch.places`."""
        lengths = batch.per_token(batch.rope_seq_lens)
        return self.angles(places, batch.positions(), lengths)

    def _inverse(self, position: Ints, planned_len: Ints) -> tuple[Floats, float]:
        """Return the frequencies [D/2] or [T D/2], and what cos and sin are multiplied by."""
        if self._fixed is not None:
            return self._fixed
        rule = self._rope.frequencies
        at_least = position + 1 if rule.grows else 1
        lengths, which = np.unique(np.maximum(planned_len, at_least), return_inverse=True)
        each = [_at(rule, length) for length in lengths.tolist()]
        return np.stack([inverse for inverse, _ in each])[which], each[-1][1]


@lru_cache(_STATES)
def _at(rule: Frequencies, length: int) -> tuple[Floats, float]:
    """Return the frequencies of a request of this length, and their factor."""
    inverse, factor = frequencies(rule, length)
    return inverse.astype(np.float32, copy=False), factor
