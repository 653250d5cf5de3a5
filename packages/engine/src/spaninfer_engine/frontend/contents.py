"""Contents of messages: the parts that a conversation may hold.

Templates drop in silence what they do not know, so that it is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spaninfer_engine.errors import InvalidPrompt, shown
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.preprocess.parts import KINDS
from spaninfer_engine.text.template import REASONING

EXAMPLE = '{"type": "text", "text": "Hello!"}'

INSTEAD = frozenset({"tool_calls", "function_call", *REASONING})
"""What an assistant's message may have in place of content."""


def check_contents(
    messages: Sequence[Mapping[str, Any]], others: frozenset[str], *, takes_media: bool
) -> None:
    """Raise InvalidPrompt for content that is neither text nor a list of parts of known types.

    `others` are types that the template knows beside text and media. What is no message at all is
    left to the check of roles.
    """
    known = ["text", *(KINDS if takes_media else ()), *sorted(others)]
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        if isinstance(content, list | tuple):
            for at, part in enumerate(content):
                _check_part(part, f"messages[{number}].content[{at}]", known)
        elif not isinstance(content, str) and not (content is None and _needs_none(message)):
            got = "no content" if content is None else f"the content {shown(content)}"
            raise InvalidPrompt(
                f"message {number} has {got}; allowed are text and a list of parts such as "
                f"{EXAMPLE}, and none beside {', '.join(sorted(INSTEAD))} of an assistant"
            )


def _needs_none(message: Mapping[str, Any]) -> bool:
    """Does an assistant say something else than content?"""
    return message.get("role") == "assistant" and any(message.get(name) for name in INSTEAD)


def _check_part(part: object, place: str, known: Sequence[str]) -> None:
    if not isinstance(part, Mapping):
        raise InvalidPrompt(
            f"{place} is {shown(part)}; allowed is an object such as {EXAMPLE}, of type "
            f"{', '.join(known)}"
        )
    kind = part.get("type")
    if kind in KINDS:  # looked at where they are prepared, and refused there by models for text
        return
    if kind not in known:
        got = f"the type {shown(kind)}" if "type" in part else "no type"
        hint = did_you_mean(kind, known) if isinstance(kind, str) else ""
        raise InvalidPrompt(f"{place} has {got}; allowed are {', '.join(known)}{hint}")
    if kind == "text" and not isinstance(part.get("text"), str):
        got = f"the text {shown(part['text'])}" if "text" in part else "no text"
        raise InvalidPrompt(f"{place} has {got}; allowed is a string, as in {EXAMPLE}")
