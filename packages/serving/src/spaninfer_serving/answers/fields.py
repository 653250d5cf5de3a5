"""Fields of answers: the engine's finish reasons, counts and log-probabilities, as on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from spaninfer_engine import FinishReason, TokenLogprob
from spaninfer_engine import Usage as EngineUsage

from spaninfer_serving.wire.sampling import Usage

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.STOPPED: "abort",  # by an operator
    FinishReason.DEADLINE: "length",
}


class TokenDecoder(Protocol):
    """The part of a tokenizer that shows single tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""


def finish_reason(reason: FinishReason | None) -> str | None:
    """Return OpenAI's word for why a choice ended."""
    return None if reason is None else _REASONS[reason]


def usage_of(
    prompt_lens: Sequence[int],
    choices: Mapping[int, EngineUsage],
    media_tokens: Mapping[str, int] | None = None,
) -> Usage:
    """Add up the counts of all choices, which have numbers: prompt * n + index.

    Each prompt counts once, and what of it was computed before its first choice came: the others
    find what that one has computed. `media_tokens` of the prompts stand for media.
    """
    firsts = range(0, len(choices), len(choices) // len(prompt_lens))
    prompt_tokens = sum(prompt_lens)
    completion_tokens = sum(choice.output_len for choice in choices.values())
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details={
            "cached_tokens": sum(choices[i].cached_len for i in firsts),
            **(media_tokens or {}),
        },
    )


def chat_logprobs(entries: Iterable[TokenLogprob], words: TokenDecoder) -> list[dict[str, Any]]:
    """Return log-probabilities as chat completions carry them (wire.chat.ChatLogprob), as plain
    values.
    """
    return [
        {
            **_token(entry.token_id, entry.logprob, words),
            "top_logprobs": [_token(token_id, logprob, words) for token_id, logprob in entry.top],
        }
        for entry in entries
    ]


def _token(token_id: int, logprob: float, words: TokenDecoder) -> dict[str, Any]:
    data = words.token_bytes(token_id)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, -9999.0),  # JSON has no -inf; OpenAI's own floor
        "bytes": list(data),
    }


def completion_logprobs(
    entries: Iterable[TokenLogprob | int],
    words: TokenDecoder,
    offset_of: Callable[[int], int],
) -> dict[str, list[Any]]:
    """Return log-probabilities as text completions carry them (wire.completions.
    CompletionLogprobs), as plain values.

    A bare id is a token without a log-probability: the first of an echoed prompt. `offset_of` is
    asked for the place of each token, in order.
    """
    tokens: list[str] = []
    logprobs: list[float | None] = []
    top: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for entry in entries:
        token_id = entry if isinstance(entry, int) else entry.token_id
        tokens.append(_shown_alone(words.token_bytes(token_id)))
        offsets.append(offset_of(token_id))
        if isinstance(entry, int):
            logprobs.append(None)
            top.append(None)
        else:
            logprobs.append(max(entry.logprob, -9999.0))
            top.append(_by_text(entry, words))
    columns: dict[str, list[Any]] = {"tokens": tokens, "token_logprobs": logprobs}
    return columns | {"top_logprobs": top, "text_offset": offsets}


def _by_text(entry: TokenLogprob, words: TokenDecoder) -> dict[str, float]:
    """Return the top tokens and the chosen one by their texts; of one text, the likelier."""
    found: dict[str, float] = {}
    for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
        text = _shown_alone(words.token_bytes(token_id))
        found[text] = max(logprob, found.get(text, -9999.0))
    return found


def _shown_alone(data: bytes) -> str:
    r"""Return a token as OpenAI's text completions show it: its text, or where it has only a part
    of a character, bytes:\xf0\x9f.

    So tokens that are parts of characters stay apart.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        shown = (chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in data)
        return f"bytes:{''.join(shown)}"
