"""Shared prefixes: what a span contains, as one hash, and the longest prefix that is there.

A span's keys and values depend on every token before it. Its link is therefore a hash over all
token ids up to its end, and whatever else decides its content; equal links mean equal content, in
every cache group. BLAKE2b makes a second sequence with the same link, by chance or by intent,
infeasible. Only whole spans have links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.rotation import Rotation
from spaninfer_engine.cache.table import first_visible
from spaninfer_engine.request import TokenIds

_LINK_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What decides the content of a request's spans besides its token ids."""

    kv_dtype: str
    tenant: str = ""
    adapter: str | None = None
    private: int | None = None  # a number that no other request has: nothing is shared

    def __bytes__(self) -> bytes:
        """Return what no other origin has."""
        # The repr of strings, numbers, None and tuples of them tells any two of them apart.
        return repr((self.kv_dtype, self.tenant, self.adapter, self.private)).encode()


class Linker:
    """The links of one token sequence, as far as they have been asked for.

    One hash runs through the sequence and is read at the end of every span: 0.7 µs a span of 32
    tokens, where a hash of each, begun with the link of the one in front, took 4.
    """

    __slots__ = ("_hash", "_origin", "_rope_len", "_rotation", "_span_len", "links")

    def __init__(self, origin: Origin, span_len: int, rotation: Rotation, rope_len: int) -> None:
        self._origin, self._span_len = origin, span_len
        self._rotation, self._rope_len = rotation, rope_len  # see plan.Slice
        self.links: list[bytes] = []
        self._hash = blake2b(_framed(bytes(origin)), digest_size=_LINK_BYTES)

    def copy(self) -> Linker:
        """Return a linker of a sequence that begins in the same way."""
        other = Linker(self._origin, self._span_len, self._rotation, self._rope_len)
        other.links, other._hash = list(self.links), self._hash.copy()
        return other

    def anew(self, rope_len: int) -> Linker:
        """Return the linker of the same sequence rotated for another length, without links yet."""
        return Linker(self._origin, self._span_len, self._rotation, rope_len)

    def extend(self, token_ids: TokenIds) -> None:
        """Append a link for each whole span of the token ids behind those with links."""
        links, running = self.links, self._hash
        words, size = token_ids.astype(np.int32).tobytes(), 4 * self._span_len
        varies = self._rotation.state is not None
        for end in range(size, len(words) + 1, size):
            extra = self._extra(len(links)) if varies else _NOTHING
            running.update(words[end - size : end] + extra)
            links.append(running.digest())

    def _extra(self, index: int) -> bytes:
        """Return what decides the content of a span besides its tokens and those before them."""
        start, stop = index * self._span_len, (index + 1) * self._span_len
        return _framed(repr(self._rotation.states(start, stop, self._rope_len)).encode())


def _framed(text: bytes) -> bytes:
    """Return text behind its length: what is hashed can be read in one way only."""
    return len(text).to_bytes(8, "little") + text


_NOTHING = _framed(b"")


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix of `num_spans` spans that is there: per cache group, spans from index `first` on."""

    num_spans: int
    tables: tuple[tuple[int, tuple[int, ...]], ...]  # per group: (first, span numbers)


def find_prefix(
    links: Sequence[bytes],
    pools: Sequence[SpanPool],
    windows: Sequence[int | None],
    span_len: int,
) -> Hit:
    """Return the longest prefix of `links` that every cache group holds.

    A group without window must hold all its spans; a group with one, those that the first
    position behind the prefix still sees.
    """
    runs = [
        pool.find_run(links) if window is None else None
        for pool, window in zip(pools, windows, strict=True)
    ]
    best = min([len(links), *(len(run) for run in runs if run is not None)])
    while (gap := _gap(links, best, pools, windows, span_len)) is not None:
        best = gap  # whatever is longer and shorter than before sees the gap, too
    tables = []
    for pool, window, run in zip(pools, windows, runs, strict=True):
        first = first_visible(best * span_len, span_len, window)
        spans = pool.find_run(links[first:best]) if run is None else run[:best]
        tables.append((first, tuple(spans)))
    return Hit(best, tuple(tables))


def _gap(
    links: Sequence[bytes],
    count: int,
    pools: Sequence[SpanPool],
    windows: Sequence[int | None],
    span_len: int,
) -> int | None:
    """Return the last index of a span that a group lacks and its window sees from behind the first
    `count` links; None if there is none.
    """
    for pool, window in zip(pools, windows, strict=True):
        if window is None:
            continue
        first = first_visible(count * span_len, span_len, window)
        for index in range(count - 1, first - 1, -1):
            if pool.find(links[index]) is None:
                return index
    return None
