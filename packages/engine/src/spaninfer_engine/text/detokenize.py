"""Ids to text while they arrive: incomplete UTF-8 and possible stop strings are held back."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence

from spaninfer_engine.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes ids piece by piece; the pieces together are `tokenizer.decode` of all ids.

    A character whose bytes lie in several tokens appears when its last byte arrives. `at_start`
    says whether the ids begin a text, so that a vocabulary's dummy space is dropped; ids that
    continue a prompt keep it. Of special tokens that are skipped, those in `keep` are not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        keep: Collection[int] = (),
        at_start: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special else frozenset()
        if keep:
            self._hidden = self._hidden.difference(keep)
        self._drops_space = at_start and tokenizer.strips_leading_space
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return "".join(map(self.push_one, ids))

    def push_one(self, token_id: int) -> str:
        """The text that this id completes."""
        if token_id in self._hidden:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if data and self._drops_space:
            data = data.removeprefix(b" ")
            self._drops_space = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return the text held back when no more ids follow: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


class StopFinder:
    """Passes text on until a stop string is complete; `hit` is then that string.

    What may be the beginning of a stop string is held back. Of several stop strings the one that
    is complete first counts, of those the longest; so the result does not depend on how the text
    was cut. `include` keeps the stop string in the text.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        assert all(stops), "an empty stop string was refused by SamplingParams"
        self._stops = sorted(stops, key=len, reverse=True)
        self._first_chars = frozenset(stop[0] for stop in stops)
        self._last_chars = frozenset(stop[-1] for stop in stops)
        self._include = include
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str) -> str:
        """The text that may be shown now; nothing after a hit."""
        if self.hit is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text  # the most frequent case by far, in 0.2 us
        text = self._held + text
        if (found := self._find(text)) is not None:
            start, self.hit = found
            self._held = ""
            return text[: start + len(self.hit)] if self._include else text[:start]
        keep = self._possible_start(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """Return the text held back when no more text follows."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        """Return the position of the stop string that is complete first, and which it is."""
        if self._last_chars.isdisjoint(text):
            return None
        found = ((text.find(stop), stop) for stop in self._stops)
        hits = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)  # the earliest end; of these the earliest start
        return start, stop

    def _possible_start(self, text: str) -> int:
        """The first position from which the rest of the text begins a stop string."""
        longest = len(self._stops[0]) - 1 if self._stops else 0
        for start in range(max(0, len(text) - longest), len(text)):
            if text[start] in self._first_chars:
                rest = text[start:]
                for stop in self._stops:
                    if stop.startswith(rest):
                        return start
        return len(text)
