"""The prefix cache: a hash of the content of each span, and the longest prefix that is cached.

The KV cache of a span depends on every token before it. Its hash is therefore taken over all token
ids up to its end, and whatever else decides its content, as the digests of media do whose rows
stand for tokens; equal hashes mean equal content, in every cache group. BLAKE2b makes a second
sequence with the same hash, by chance or by intent, infeasible. Only whole spans have hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import numpy as np

from spaninfer_engine.cache.rope_state import RopeState
from spaninfer_engine.cache.table import first_visible
from spaninfer_engine.request.media import MediaRun, runs_within
from spaninfer_engine.request.request import TokenIds

_HASH_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HashSeed:
    """Everything besides its token ids that decides the content of a request's spans."""

    kv_dtype: str
    tenant: str = ""
    adapter: str | None = None
    private: int | None = None  # a number that no other request has: nothing is shared
    epoch: str = ""  # another one whenever what was computed before is not to be found any more

    def __bytes__(self) -> bytes:
        """Return bytes that no other seed has."""
        # The repr of strings, numbers, None and tuples of them tells any two of them apart.
        return repr((self.kv_dtype, self.tenant, self.adapter, self.private, self.epoch)).encode()


class SpanHasher:
    """The span hashes of one token sequence, as far as they were needed.

    One hash runs through the sequence and is read at the end of every span: 0.7 µs a span of 32
    tokens, where a hash of each, begun with the one in front, took 4.
    """

    __slots__ = ("_hash", "_media", "_rope_seq_len", "_rope_state", "_seed", "_span_len", "hashes")

    def __init__(
        self,
        seed: HashSeed,
        span_len: int,
        rope_state: RopeState,
        rope_seq_len: int,
        media: tuple[MediaRun, ...] = (),
    ) -> None:
        self._seed, self._span_len, self._media = seed, span_len, media
        self._rope_state, self._rope_seq_len = rope_state, rope_seq_len  # see plan.Slice
        self.hashes: list[bytes] = []
        self._hash = blake2b(_framed(bytes(seed)), digest_size=_HASH_BYTES)

    def copy(self) -> SpanHasher:
        """Return a hasher of a sequence that begins in the same way."""
        other = self.with_rope_seq_len(self._rope_seq_len)
        other.hashes, other._hash = list(self.hashes), self._hash.copy()
        return other

    def with_rope_seq_len(self, rope_seq_len: int) -> SpanHasher:
        """Return a hasher of the same sequence rotated for another length, without hashes yet."""
        return SpanHasher(self._seed, self._span_len, self._rope_state, rope_seq_len, self._media)

    def extend(self, token_ids: TokenIds) -> None:
        """Append a hash for each whole span of the token ids behind those with hashes."""
        hashes, running = self.hashes, self._hash
        words, size = token_ids.astype(np.int32).tobytes(), 4 * self._span_len
        varies = self._rope_state.state is not None or bool(self._media)
        for end in range(size, len(words) + 1, size):
            extra = self._extra(len(hashes)) if varies else _NOTHING
            running.update(words[end - size : end] + extra)
            hashes.append(running.digest())

    def _extra(self, index: int) -> bytes:
        """Return what decides the content of a span besides its tokens and those before them."""
        start, stop = index * self._span_len, (index + 1) * self._span_len
        states: tuple[object, ...] = ()
        if self._rope_state.state is not None:
            states = self._rope_state.states(start, stop, self._rope_seq_len)
        shown = [(*run[:2], run.digest, run.row) for run in runs_within(self._media, start, stop)]
        return _framed(repr((states, shown)).encode()) if states or shown else _NOTHING


def _framed(text: bytes) -> bytes:
    """Return text behind its length: what is hashed can be read in one way only."""
    return len(text).to_bytes(8, "little") + text


_NOTHING = _framed(b"")


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A cached prefix of `num_spans` spans: per cache group, spans from index `first` on."""

    num_spans: int
    tables: tuple[tuple[int, tuple[int, ...]], ...]  # per group: (first, span numbers)


class HashIndex(Protocol):
    """The hash index of one cache group: from span hashes to span numbers."""

    def find(self, span_hash: bytes) -> int | None:
        """Return the number of the span with this hash."""
        ...

    def find_run(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the numbers of the spans with these hashes, up to the first that is missing."""
        ...


def find_prefix(
    hashes: Sequence[bytes],
    indexes: Sequence[HashIndex],
    windows: Sequence[int | None],
    span_len: int,
) -> PrefixHit:
    """Return the longest prefix of `hashes` that every cache group holds.

    A group without window must hold all its spans; a group with one, those that the first
    position behind the prefix still sees.
    """
    runs = [
        group.find_run(hashes) if window is None else None
        for group, window in zip(indexes, windows, strict=True)
    ]
    best = min([len(hashes), *(len(run) for run in runs if run is not None)])
    while (gap := _gap(hashes, best, indexes, windows, span_len)) is not None:
        best = gap  # whatever is longer and shorter than before sees the gap, too
    tables = []
    for group, window, run in zip(indexes, windows, runs, strict=True):
        first = first_visible(best * span_len, span_len, window)
        spans = group.find_run(hashes[first:best]) if run is None else run[:best]
        tables.append((first, tuple(spans)))
    return PrefixHit(best, tuple(tables))


def _gap(
    hashes: Sequence[bytes],
    count: int,
    indexes: Sequence[HashIndex],
    windows: Sequence[int | None],
    span_len: int,
) -> int | None:
    """Return the last index of a span that a group lacks and its window sees from behind the first
    `count` hashes; None if there is none.
    """
    for group, window in zip(indexes, windows, strict=True):
        if window is None:
            continue
        first = first_visible(count * span_len, span_len, window)
        for index in range(count - 1, first - 1, -1):
            if group.find(hashes[index]) is None:
                return index
    return None
