"""Text to token ids and back, whatever the vocabulary's kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spaninfer_engine.errors import InvalidPrompt
from spaninfer_engine.text.codec import Codec
from spaninfer_engine.text.provenance import Ranges
from spaninfer_engine.text.special import SpecialFinder, SpecialToken

# No word begins with it, so nothing behind it becomes one token with it.
JOINT = "☺"


@dataclass(frozen=True, slots=True)
class PairFrame:
    """The ids around and between the two texts of a pair."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    has_types: bool  # have tokens of the second text, and those behind it, token type 1?


@dataclass(frozen=True, slots=True)
class Frame:
    """The ids that belong before and after a whole text, and around a pair where that is known."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pair: PairFrame | None = None


class Tokenizer:
    """A vocabulary with its special tokens.

    `eos_ids` are all ids that end an answer. `special_ids` are the ids that steer the model and
    are left out of decoded text. `is_wordless`: no text has ids, and ids have no text.
    """

    def __init__(
        self,
        codec: Codec,
        special: Iterable[SpecialToken],
        *,
        frame: Frame = Frame(),
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        is_wordless: bool = False,
    ) -> None:
        tokens = list(special)
        controls = [token for token in tokens if not token.is_text]
        self._codec = codec
        self._frame = frame
        self._finder = SpecialFinder(tokens)
        self._texts = {token.token_id: token.text for token in tokens}
        self.vocab_size = max([codec.vocab_size, *(i + 1 for i in self._texts)])
        """One more than the largest id."""
        self._bytes: dict[int, bytes] = {}
        self.bos_id = bos_id
        self.is_wordless = is_wordless
        self.eos_ids = frozenset(eos_ids)
        self.special_ids = frozenset(token.token_id for token in controls)

    @property
    def strips_leading_space(self) -> bool:
        """True if the first token of a text adds a space that is not part of the text."""
        return self._codec.strips_leading_space

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool | Ranges = False,
    ) -> list[int]:
        """The ids of a text.

        `add_special` puts the tokenizer's own ids around it (a BOS that the text begins with is
        not doubled). `parse_special` recognises control tokens written in the text: True
        everywhere, ranges of characters only there; elsewhere they are letters like any others.
        """
        ranges: Ranges = parse_special if isinstance(parse_special, tuple) else ()
        if parse_special is True:
            ranges = ((0, len(text)),)
        ids: list[int] = []
        for piece in self._finder.cut(text, ranges):
            if piece.token_id is not None:
                ids.append(piece.token_id)
            else:
                plain = _without_surrogates(piece.text)
                ids += self._codec.encode(plain, at_start=piece.at_start)
        return self.framed(ids) if add_special else ids

    def encode_inside(self, text: str) -> list[int]:
        """The ids of a text in the middle of another: without the space in front that some
        vocabularies add. Control tokens are letters.
        """
        if not self.strips_leading_space:
            return self.encode(text, add_special=False)
        before = self.encode(JOINT, add_special=False)
        ids = self.encode(JOINT + text, add_special=False)
        return ids[len(before) :]

    def encode_pair(
        self, first: str, second: str, limit: int | None = None
    ) -> tuple[list[int], int | None]:
        """The ids of a pair of texts, and where token type 1 begins, if the model has it for pairs.

        `limit`: of more tokens than that the longer text loses its end first, as in
        transformers' `longest_first`. InvalidPrompt where nothing says what stands between texts.
        """
        pair = self._frame.pair
        if pair is None:
            raise InvalidPrompt(
                "this model's tokenizer does not define what separates the texts of a pair; add a "
                "tokenizer.json whose post-processor does"
            )
        one, two = (self.encode(text, add_special=False) for text in (first, second))
        if limit is not None:
            room = limit - len(pair.before) - len(pair.between) - len(pair.after)
            ends = _longest_first(len(one), len(two), max(0, room))
            one, two = one[: ends[0]], two[: ends[1]]
        head = [*pair.before, *one, *pair.between]
        return [*head, *two, *pair.after], len(head) if pair.has_types else None

    def truncate(self, ids: Sequence[int], limit: int) -> list[int]:
        """The first of a text's ids; those that belong behind a whole text stay behind it."""
        after = list(self._frame.after)
        if len(ids) <= limit or list(ids[len(ids) - len(after) :]) != after:
            return list(ids[:limit])
        return [*ids[: max(limit - len(after), 0)], *after][:limit]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        data = b"".join(self.token_bytes(token_id, skip_special=skip_special) for token_id in ids)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token_id: int, *, skip_special: bool = False) -> bytes:
        """Return the bytes that a token appends to a text; empty for ids without a piece."""
        if skip_special and token_id in self.special_ids:
            return b""
        if token_id not in self._bytes:
            text = self._texts.get(token_id)
            self._bytes[token_id] = (
                self._codec.token_bytes(token_id) if text is None else text.encode()
            )
        return self._bytes[token_id]

    def find_id(self, text: str) -> int | None:
        """The id of a piece or special token, or None."""
        for token_id, special in self._texts.items():
            if special == text:
                return token_id
        return self._codec.find_id(text)

    def framed(self, ids: list[int]) -> list[int]:
        """Put the tokenizer's own ids around those of a whole text, where they are not there."""
        before, after = list(self._frame.before), list(self._frame.after)
        if before and ids[: len(before)] == before:
            before = []
        if after and ids[-len(after) :] == after:
            after = []
        return before + ids + after


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text stay, of which `room` fit together."""
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    long = room - short
    return (short, long) if first <= second else (long, short)


def _without_surrogates(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced by U+FFFD: they have no bytes."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
