"""The encoder cache: encodings of media on the device, by the digests of their inputs.

An encoding serves every request that shows the same picture, in this turn or a later one. The least
recently needed ones make room for others; the device learns which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection


class EncoderCache:
    """At most `max_rows` rows of encodings: a row stands for one token of a prompt."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._rows: OrderedDict[bytes, int] = OrderedDict()  # the least recently needed first
        self._num_rows = 0
        self._dropped: list[bytes] = []

    def __contains__(self, digest: bytes) -> bool:
        """Return True if the encoding is there, or will be before the next step."""
        return digest in self._rows

    def __len__(self) -> int:
        """Return how many encodings are kept."""
        return len(self._rows)

    @property
    def num_rows(self) -> int:
        """Rows of all encodings."""
        return self._num_rows

    def touch(self, digest: bytes) -> None:
        """Note that an encoding is needed now, if it is there."""
        if digest in self._rows:
            self._rows.move_to_end(digest)

    def add(self, digest: bytes, num_rows: int, needed: Collection[bytes]) -> bool:
        """Make room for an encoding; False where those that are needed leave none."""
        if self._kept(needed) + num_rows > self.max_rows:
            return False
        for other in [other for other in self._rows if other not in needed]:
            if self._num_rows + num_rows <= self.max_rows:
                break
            self.drop(other)
        self._rows[digest] = num_rows
        self._num_rows += num_rows
        return True

    def drop(self, digest: bytes) -> None:
        """Forget an encoding, if it is there."""
        if digest in self._rows:
            self._num_rows -= self._rows.pop(digest)
            self._dropped.append(digest)

    def take_dropped(self) -> tuple[bytes, ...]:
        """Return the digests that were dropped since the last call, and were not added again."""
        dropped, self._dropped = self._dropped, []
        return tuple(digest for digest in dropped if digest not in self._rows)

    def _kept(self, needed: Collection[bytes]) -> int:
        return sum(self._rows.get(digest, 0) for digest in set(needed))
