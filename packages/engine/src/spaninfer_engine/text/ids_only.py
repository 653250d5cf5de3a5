"""The tokenizer of a model without tokenizer files: ids in, ids out."""

from __future__ import annotations

from collections.abc import Iterable

from spaninfer_engine.errors import InvalidPrompt
from spaninfer_engine.text.tokenizer import Tokenizer

NO_TEXT = (
    "this model has no tokenizer files; send token ids, a list of whole numbers as the prompt "
    "(over HTTP to /v1/completions, with return_token_ids for those of the answer), or put "
    "tokenizer.json, tokenizer.model, vocab.json with merges.txt, or a .tiktoken file beside the "
    "weights"
)


class Wordless:
    """A vocabulary of ids without pieces: no id has a text, and no text has ids."""

    strips_leading_space = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str, *, at_start: bool) -> list[int]:  # noqa: ARG002
        """InvalidPrompt: there is nothing to cut a text into."""
        raise InvalidPrompt(NO_TEXT)

    def token_bytes(self, token_id: int) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    def find_id(self, text: str) -> int | None:  # noqa: ARG002
        """None."""
        return None


def wordless_tokenizer(vocab_size: int, eos_ids: Iterable[int]) -> Tokenizer:
    """Return a tokenizer that refuses texts and decodes every id to the empty text."""
    return Tokenizer(Wordless(vocab_size), (), eos_ids=eos_ids, is_wordless=True)
