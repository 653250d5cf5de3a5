"""Limits of what an answer repeats of its prompts: text, token ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from spaninfer_engine import SamplingParams

from spaninfer_serving.answers.responses import Prompt
from spaninfer_serving.wire.chat import ChatRequest
from spaninfer_serving.wire.completions import CompletionRequest
from spaninfer_serving.wire.errors import Problem

# 1,048,576 log-probabilities are 8 MiB in the engine, and 30 to 70 MB of JSON. All of a context of
# 128 Ki tokens with 7 top tokens each, 48 Ki with 20.
MAX_ENTRIES = 1 << 20
MAX_CHARS = 8 << 20


def check_repeats(
    prompts: Sequence[Prompt], sampling: SamplingParams, body: ChatRequest | CompletionRequest
) -> None:
    """Refuse to repeat more than an answer can carry.

    Each choice of a text completion repeats its prompt; a chat repeats it once.
    """
    times = sampling.n if isinstance(body, CompletionRequest) else 1
    num_tokens = times * sum(len(prompt.ids) for prompt in prompts)
    if body.return_token_ids:
        _check("return_token_ids", f"{num_tokens} token ids of prompts", num_tokens)
    if body.prompt_logprobs is not None:
        _check_entries("prompt_logprobs", num_tokens, body.prompt_logprobs)
    if isinstance(body, CompletionRequest) and body.echo:
        num_chars = times * sum(len(prompt.text) for prompt in prompts)
        _check("echo", f"{num_chars} characters of prompts", num_chars, MAX_CHARS)
        if body.logprobs is not None:
            _check_entries("logprobs", num_tokens, body.logprobs)


def _check_entries(param: str, num_tokens: int, num_top: int) -> None:
    entries = num_tokens * (1 + num_top)
    what = f"{entries} log-probabilities, of {num_tokens} prompt tokens and the top tokens there"
    _check(param, what, entries)


def _check(param: str, what: str, count: int, most: int = MAX_ENTRIES) -> None:
    if count > most:
        raise Problem(
            400,
            f"{param} would repeat {what}; allowed are at most {most}; lower n or the number of "
            "log-probabilities, or send the prompts in several requests",
            param=param,
            code="echo_too_large",
        )
