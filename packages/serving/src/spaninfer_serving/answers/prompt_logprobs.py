"""Log-probabilities of prompts, from the engine's entries to vLLM's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any

from pydantic_core import to_json
from spaninfer_engine import TokenLogprob

from spaninfer_serving.answers.fields import TokenDecoder
from spaninfer_serving.wire.pieces import in_pieces


def prompt_logprob_pieces(entries: Sequence[TokenLogprob], words: TokenDecoder) -> Iterator[str]:
    """Yield the JSON of a prompt's log-probabilities; its first token has none, and no entry."""
    yield "[null"
    for piece in in_pieces(entries):
        yield "".join(f",{to_json(_by_id(entry, words)).decode()}" for entry in piece)
    yield "]"


def _by_id(entry: TokenLogprob, words: TokenDecoder) -> dict[int, dict[str, Any]]:
    """Return the token of a prompt, and the top tokens in its place, by their ids."""
    own = (entry.token_id, entry.logprob, entry.rank)
    top = ((*pair, rank) for pair, rank in zip(entry.top, count(1), strict=False))
    return {
        token_id: {
            "logprob": max(logprob, -9999.0),  # JSON has no -inf; vLLM's own floor
            "rank": rank,
            "decoded_token": words.token_bytes(token_id).decode("utf-8", "replace"),
        }
        for token_id, logprob, rank in chain([own], top)
    }
