"""Shared prefixes: what a span contains, as one hash, and the longest prefix that is there.

A span's keys and values depend on every token before it. Its link is therefore a hash over the
link of the span in front, its own token ids, and whatever else decides its content; equal links
mean equal content, in every cache group. BLAKE2b makes a second sequence with the same link, by
chance or by intent, infeasible. Only whole spans have links.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from spaninfer_engine.cache.pool import SpanPool
from spaninfer_engine.cache.rotation import Rotation
from spaninfer_engine.cache.table import first_visible

_LINK_BYTES = 32


class Origin:
    """What decides the content of a request's spans besides its token ids."""

    __slots__ = ("_common", "_media")

    def __init__(
        self,
        *,
        kv_dtype: str,
        tenant: str = "",
        adapter: str | None = None,
        media: tuple[tuple[int, int, bytes], ...] = (),  # (start, stop, digest) of rows replaced
        private: int | None = None,  # a number that no other request has: nothing is shared
    ) -> None:
        # The repr of strings, numbers, None and tuples of them tells any two of them apart.
        self._common = repr((kv_dtype, tenant, adapter, private)).encode()
        self._media = media

    def extra(self, start: int, stop: int) -> bytes:
        """Return what goes into the link of positions [start, stop)."""
        if not self._media:
            return self._common
        media = tuple(item for item in self._media if item[0] < stop and item[1] > start)
        return self._common + repr(media).encode()


@dataclass(frozen=True, slots=True)
class Linker:
    """Computes the links of one token sequence."""

    origin: Origin
    span_len: int
    rotation: Rotation
    rope_len: int  # see plan.Slice

    def extend(self, links: list[bytes], token_ids: Sequence[int], num_spans: int) -> None:
        """Append to `links` until it has one for each of the first `num_spans` spans."""
        for index in range(len(links), num_spans):
            start, stop = index * self.span_len, (index + 1) * self.span_len
            parent = links[-1] if links else bytes(_LINK_BYTES)
            links.append(link(parent, token_ids[start:stop], self._extra(start, stop)))

    def _extra(self, start: int, stop: int) -> bytes:
        extra = self.origin.extra(start, stop)
        if self.rotation.state is None:
            return extra
        return extra + repr(self.rotation.states(start, stop, self.rope_len)).encode()


def link(parent: bytes, token_ids: Sequence[int], extra: bytes) -> bytes:
    """Return the link of a span behind `parent`; all spans have equally many token ids."""
    return blake2b(
        parent + array("q", token_ids).tobytes() + extra, digest_size=_LINK_BYTES
    ).digest()


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
    found: list[list[int | None]] = [[] for _ in pools]
    since = [0] * len(pools)  # per group: from this index on, without a gap
    best = 0
    for index, label in enumerate(links):
        for group, pool in enumerate(pools):
            span = pool.find(label)
            found[group].append(span)
            if span is None:
                since[group] = index + 1
        if any(gap and window is None for gap, window in zip(since, windows, strict=True)):
            break
        behind = (index + 1) * span_len
        if all(
            gap <= first_visible(behind, span_len, window)
            for gap, window in zip(since, windows, strict=True)
        ):
            best = index + 1
    firsts = [min(best, first_visible(best * span_len, span_len, window)) for window in windows]
    return Hit(
        best,
        tuple(
            (first, tuple(span for span in spans[first:best] if span is not None))
            for first, spans in zip(firsts, found, strict=True)
        ),
    )
