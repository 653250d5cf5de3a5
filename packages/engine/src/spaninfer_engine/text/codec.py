"""Ordinary text to ids and ids to bytes: what the kinds of vocabulary have in common."""

from __future__ import annotations

from typing import Protocol


class Codec(Protocol):
    """A vocabulary and the rule that cuts ordinary text, without special tokens, into it."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def strips_leading_space(self) -> bool:
        """True if a text's first token adds a space that was not in the text."""
        ...

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of a text; `at_start` where nothing of the prompt comes before it."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token appends to a text; empty for an id that does not exist."""
        ...

    def find_id(self, text: str) -> int | None:
        """The id of a piece, or None."""
        ...
