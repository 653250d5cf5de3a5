"""Vocabularies behind the tokenizers library: tokenizer.json, and whatever is turned into it."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Library

from spaninfer_engine.text.bytemap import from_alphabet, to_alphabet
from spaninfer_engine.text.special import SpecialToken
from spaninfer_engine.text.tokenizer import PairFrame

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
UNKNOWN = "\U0010fffe"  # no character: no vocabulary has it
BRIEF_CHARS = 256  # take 0.1 ms; giving the interpreter to others and having it back takes as long
ANCHOR = "a"  # a piece in front, so that what follows is decoded as the middle of a text


class FastCodec:
    """A Codec over a tokenizers.Tokenizer. Control tokens in its input are ordinary text."""

    def __init__(self, library: Library) -> None:
        library.encode_special_tokens = True  # the library's word for "do not recognise them"
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._added = {
            token_id: token.content
            for token_id, token in library.get_added_tokens_decoder().items()
        }
        decoders = _types(_settings_of(library.decoder))
        self._is_byte_level = "ByteLevel" in decoders
        self._has_byte_pieces = "ByteFallback" in decoders
        self._vocab_size = _vocab_size(library)
        self._spellings = {each: self._spelling(each) for each in self._reachable_controls()}

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._vocab_size

    @cached_property
    def strips_leading_space(self) -> bool:
        """True if decoding drops a space before the first token."""
        if self._is_byte_level:
            return False
        return any(self._middle(piece) == " " + self._join([piece]) for piece in ("▁a", "a"))

    @property
    def special_tokens(self) -> list[SpecialToken]:
        """The library's control tokens; added tokens that are text it recognises by itself."""
        return [
            SpecialToken(
                token_id,
                token.content,
                strips_left=token.lstrip,
                strips_right=token.rstrip,
                whole_word=token.single_word,
            )
            for token_id, token in self._library.get_added_tokens_decoder().items()
            if token.special
        ]

    @property
    def added_by_default(self) -> tuple[list[int], list[int]]:
        """The ids that the library's post-processor puts before and after a text."""
        encoding = self._library.encode("a", add_special_tokens=True)
        mask = encoding.special_tokens_mask
        if 0 not in mask:
            return [], []
        first, last = mask.index(0), len(mask) - mask[::-1].index(0)
        return encoding.ids[:first], encoding.ids[last:]

    @property
    def pair_frame(self) -> PairFrame | None:
        """Return the ids that the post-processor puts around two texts; None for none."""
        encoding = self._library.encode("a", "b", add_special_tokens=True)
        owners, types = encoding.sequence_ids, encoding.type_ids
        if {0, 1} - {*owners} or owners.count(None) == 0:
            return None
        begin, middle = owners.index(0), owners.index(1)
        between = max(place for place, owner in enumerate(owners) if owner == 0) + 1
        after = max(place for place, owner in enumerate(owners) if owner == 1) + 1
        ids = encoding.ids
        return PairFrame(
            tuple(ids[:begin]), tuple(ids[between:middle]), tuple(ids[after:]), types[middle] == 1
        )

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of an ordinary text."""
        library = self._library if at_start else self._inner_library
        if len(text) <= BRIEF_CHARS:
            encoding = library.encode(text, add_special_tokens=False)
        else:  # a batch of one: other threads run meanwhile, which encode() does not allow
            [encoding] = library.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._spellings.keys().isdisjoint(ids):
            return ids
        return [each for found in ids for each in self._spellings.get(found, (found,))]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token appends to a text."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._library.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_byte_level:
            return from_alphabet(piece)
        if self._has_byte_pieces and (byte := BYTE_PIECE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return self._middle(piece).encode()

    def find_id(self, text: str) -> int | None:
        """The id of a piece, or None."""
        found: int | None = self._library.token_to_id(text)
        return found

    @cached_property
    def _inner_library(self) -> Library:
        """The library for text after a special token: without the space before a first word."""
        if '"prepend_scheme": "first"' not in json.dumps(_settings_of(self._library.pre_tokenizer)):
            return self._library
        whole = self._library.to_str().replace(
            '"prepend_scheme":"first"', '"prepend_scheme":"never"'
        )
        inner = Library.from_str(whole)
        inner.encode_special_tokens = True
        return inner

    def _reachable_controls(self) -> set[int]:
        """Control tokens that the model makes of ordinary text, as Unigram models do: their texts
        are pieces like any others. The unknown token, which stands for many texts, is none.
        """
        controls = {token.token_id: token.text for token in self.special_tokens}
        if not controls:
            return set()
        around = ("{}", "a{}a", " {} ")
        texts = [form.format(text) for text in controls.values() for form in around]
        found = self._library.encode_batch_fast([*texts, UNKNOWN], add_special_tokens=False)
        *spelled, unknown = ({*encoding.ids} for encoding in found)
        return controls.keys() & set().union(*spelled) - unknown

    def _spelling(self, token_id: int) -> list[int]:
        """A control token's text as ids of single characters, none of which is a control token."""
        pieces = [
            piece
            for char in self._added[token_id]
            for piece in (to_alphabet(char.encode()) if self._is_byte_level else [char])
        ]
        ids = [each for piece in pieces for each in self._piece_ids(piece)]
        controls = {token.token_id for token in self.special_tokens}
        return [each for each in ids if each not in controls]

    def _piece_ids(self, piece: str) -> list[int]:
        known = self.find_id(piece)
        if known is not None:
            return [known]
        ids: list[int] = self._library.encode(piece, add_special_tokens=False).ids
        return ids

    def _middle(self, piece: str) -> str:
        return self._join([ANCHOR, piece]).removeprefix(ANCHOR)

    def _join(self, pieces: list[str]) -> str:
        decoder = self._library.decoder
        joined: str = decoder.decode(pieces) if decoder else " ".join(pieces)
        return joined


def _settings_of(part: Any) -> Any:
    """The settings of a decoder or pre-tokenizer, None where there is none.

    As it pickles itself: the library writes settings only with the whole vocabulary around them,
    which takes 0.3 s for 152,000 tokens.
    """
    return None if part is None else json.loads(part.__getstate__())


def _vocab_size(library: Library) -> int:
    """One more than the largest id.

    As many tokens as there are, where these have all ids from 0 on; else all must be looked at,
    in a dictionary that takes three times as long to build.
    """
    count: int = library.get_vocab_size(with_added_tokens=True)
    if all(library.id_to_token(token_id) is not None for token_id in range(count)):
        return count
    return 1 + max(library.get_vocab(with_added_tokens=True).values())


def _types(settings: Any) -> set[str]:
    """The names of all steps in a decoder's settings."""
    if not isinstance(settings, dict):
        return set()
    inner = settings.get("decoders", [])
    return {settings["type"]}.union(*(_types(step) for step in inner))
