"""Length-dependent rotary frequencies: how the length of a request changes its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from sys import maxsize

from spaninfer_engine.spec.nodes import Decoder, ropes

State = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RopeState:
    """The frequency state of a length, and the length beyond which all keys are computed anew."""

    state: Callable[[int], State] | None = None  # () up to some length, never again above it
    recompute_beyond: int | None = None
    grows: bool = True  # does a length go on counting while tokens are generated?

    def states(self, start: int, stop: int, rope_seq_len: int) -> tuple[State, ...]:
        """Return the state of each position in [start, stop); () where none has any.

        Position p of a request is rotated for the length max(rope_len, p + 1), or, where lengths
        do not grow, for rope_len.
        """
        if self.state is None or not self.state(self._length(stop, rope_seq_len)):
            return ()
        return tuple(
            self.state(self._length(position + 1, rope_seq_len)) for position in range(start, stop)
        )

    def _length(self, known: int, rope_seq_len: int) -> int:
        return max(rope_seq_len, known) if self.grows else rope_seq_len

    def needs_recompute(self, rope_seq_len: int, length: int) -> bool:
        """Return True if keys rotated for `rope_seq_len` must be recomputed at this length."""
        return self.recompute_beyond is not None and rope_seq_len <= self.recompute_beyond < length


def rope_state_of(decoder: Decoder) -> RopeState:
    """Return how a model's keys depend on length."""
    if not decoder.frequency_state(maxsize):
        return RopeState()
    every = [rope.frequencies for rope in ropes(decoder)]
    return RopeState(
        lru_cache(maxsize=4096)(decoder.frequency_state),
        min((each.original_len for each in every if each.recompute), default=None),
        any(each.grows for each in every if each.state(maxsize)),
    )
