"""Places of tokens in the text of a completion, an echoed prompt in front of it included."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Protocol

from spaninfer_serving.answers.fields import TokenDecoder

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Vocabulary(TokenDecoder, Protocol):
    """The part of a tokenizer that says what of its tokens a text shows."""

    @property
    def special_ids(self) -> Collection[int]:
        """The tokens that texts of prompts leave out."""

    @property
    def strips_leading_space(self) -> bool:
        """True if the first token of a text begins with a space that the text has not."""


class TextOffsets:
    """Counts the characters of a completion's text while its tokens come, an echoed prompt's first.

    A token's offset is that of its first character; where it goes on with a character that another
    token has begun, that character's. `hidden` are the tokens that the answer's text leaves out.
    """

    def __init__(
        self,
        words: Vocabulary,
        hidden: Collection[int] = (),
        *,
        echoed: tuple[Sequence[int], str] = ((), ""),
    ) -> None:
        ids, self._echo = echoed
        self._left = len(ids)  # tokens of the prompt that are still to come
        self._prompt = _Counter(words, words.special_ids, drops_space=words.strips_leading_space)
        # The two texts are decoded apart: what a prompt ends with is never half of a character.
        self._answer = _Counter(words, hidden, at=len(self._echo))

    def of(self, token_id: int) -> int:
        """Return the offset of the next token."""
        if not self._left:
            return self._answer.of(token_id)
        self._left -= 1
        # With a suffix, there is more in front of the model than the text that is shown.
        return min(self._prompt.of(token_id), len(self._echo))


class _Counter:
    """Counts the characters of one text."""

    def __init__(
        self,
        words: TokenDecoder,
        hidden: Collection[int],
        *,
        at: int = 0,
        drops_space: bool = False,
    ) -> None:
        self._words, self._hidden = words, hidden
        self._at, self._drops_space = at, drops_space
        self._decoder = _Utf8Decoder(errors="replace")

    def of(self, token_id: int) -> int:
        """Return the offset of the next token."""
        if token_id in self._hidden:
            return self._at
        data = self._words.token_bytes(token_id)
        if data and self._drops_space:
            data, self._drops_space = data.removeprefix(b" "), False
        if data and not _continues(data[0]):  # what is unfinished in front of it is whole
            self._at += len(self._decoder.decode(b"", final=True))
        at = self._at
        self._at += len(self._decoder.decode(data))
        return at


def _continues(byte: int) -> bool:
    """Return whether a byte is none that a character begins with."""
    return byte & 0xC0 == 0x80
