"""Prompts in every form that callers give, as token ids."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard, overload

import numpy as np

from spaninfer_engine.errors import InvalidPrompt, shown
from spaninfer_engine.request.media import PromptMedia
from spaninfer_engine.request.request import TokenIds

Prompt: TypeAlias = str | Sequence[int]
"""A text, or token ids, also as an array or tensor with one axis; a MediaPrompt among them."""


class MediaPrompt(Sequence[int]):
    """Token ids with media: placeholder tokens stand where rows of the media's encodings go."""

    def __init__(self, token_ids: Sequence[int], media: PromptMedia) -> None:
        self._token_ids, self.media = tuple(token_ids), media

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        """Return a token id, or ids without media."""
        return self._token_ids[index]

    def __len__(self) -> int:
        """Return the number of tokens, placeholders included."""
        return len(self._token_ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._token_ids)


def media_of(prompt: Prompt | TokenIds) -> PromptMedia | None:
    """Return the media of a prompt, if it has some."""
    return prompt.media if isinstance(prompt, MediaPrompt) else None


def token_ids(prompt: Sequence[int] | TokenIds) -> TokenIds:
    """Return a prompt's ids as an array; InvalidPrompt where they are no whole numbers."""
    if isinstance(prompt, np.ndarray) and prompt.dtype == np.int64:
        return prompt
    try:  # 4000 numbers take 34 µs like this, 80 to 150 as an array
        words = struct.pack(f"{len(prompt)}q", *prompt)
    except (struct.error, TypeError, ValueError) as error:  # the latter two of arrays as ids
        allowed = "text or token ids, whole numbers below 2**63"
        raise InvalidPrompt(f"a prompt is {allowed}: {error}") from error
    return np.frombuffer(words, np.int64)


def check_sequence(prompts: object) -> None:
    """Raise InvalidPrompt for what is neither text nor a sequence; bytes would pass for ids."""
    is_sequence = hasattr(prompts, "__len__") and hasattr(prompts, "__getitem__")
    is_sequence &= _num_axes(prompts) != 0  # such an array has both, and neither works
    if not is_sequence or isinstance(prompts, bytes | bytearray | Mapping):
        kind = type(prompts).__name__
        raise InvalidPrompt(f"a prompt is text or a sequence of token ids; this one is {kind}")


def check_prompt(prompt: object) -> None:
    """Raise InvalidPrompt for what is no single prompt: no sequence, or a table of several."""
    check_sequence(prompt)
    axes = _num_axes(prompt)
    if axes is not None and axes > 1:
        raise InvalidPrompt(
            f"a prompt is text or a sequence of token ids; this one is an array with {axes} axes; "
            "pass one row, or all rows of an array with 2 axes to generate()"
        )


def is_conversation(messages: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Return True for one conversation, False for a list of them; InvalidPrompt for neither."""
    if isinstance(messages, Sequence) and not isinstance(messages, str | bytes):
        if all(isinstance(message, Mapping) for message in messages):
            return len(messages) > 0
        if all(isinstance(each, Sequence) and is_conversation(each) for each in messages):
            return False
    raise InvalidPrompt(
        'messages are a list such as [{"role": "user", "content": "Hello!"}], or a list of such '
        f"lists; this is {shown(messages)}; generate() continues a text"
    )


def is_one(prompts: Prompt | Sequence[Prompt]) -> TypeGuard[Prompt]:
    """Return True for one prompt, False for a list of them."""
    check_sequence(prompts)
    return isinstance(prompts, str) or (len(prompts) > 0 and _is_id(prompts[0]))


def _is_id(item: object) -> bool:
    """Is it a whole number? Arrays, which are rows, have the method as well."""
    return hasattr(item, "__index__") and not _num_axes(item)


def _num_axes(value: object) -> int | None:
    """Return how many axes an array or a tensor has; None for anything else."""
    axes = getattr(value, "ndim", None)
    return axes if isinstance(axes, int) else None
