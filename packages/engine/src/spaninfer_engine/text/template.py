"""Chat templates: messages to prompt text, in which users' words can never become control tokens.

A user may write "<|im_end|>" in a message. After rendering, nobody can tell it from the
template's own; so rendered text carries which of its characters the template wrote itself (see
provenance.py), and the tokenizer recognises control tokens only there. The text is what
transformers makes of the same template and messages, to the last character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2

from spaninfer_engine.errors import TemplateError
from spaninfer_engine.text.provenance import Ranges, TrustedText, trusted_ranges
from spaninfer_engine.text.sandbox import Sandbox

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
"""Roles a message may have. Templates build control tokens of them ("<|" + role + "|>")."""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages bring what a model thought; a template knows one of them."""

REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template at fault raises: it is a program, and can fail like one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation, for `Tokenizer.encode(text, parse_special=trusted)`.

    `trusted` are the ranges of its characters that the template wrote.
    """

    text: str
    trusted: Ranges


class ChatTemplate:
    """A model's chat template.

    `source` is Jinja text, or several by name, of which "default" is used (and "tool_use" when
    there are tools); None for a model without one: it is an error only when a chat is rendered.
    `origin` names the model in messages. `special_tokens` are variables such as bos_token.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        *,
        origin: str,
        special_tokens: Mapping[str, str],
    ) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._origin = origin
        self._special_tokens = {name: TrustedText(text) for name, text in special_tokens.items()}
        self._sandbox = Sandbox()
        self._compile = lru_cache(maxsize=8)(self._compile_new)
        self._loops_over_content = lru_cache(
            lambda name: self._sandbox.loops_over_content(self._sources[name])
        )

    def source(self, *, has_tools: bool) -> str:
        """The Jinja text for conversations with or without tools; TemplateError for none."""
        return self._sources[self._choose(has_tools)]

    def named(self, words: frozenset[str], *, has_tools: bool) -> frozenset[str]:
        """Those of some words that the template compares texts with; TemplateError for none."""
        source = self.source(has_tools=has_tools)
        return frozenset(word for word in words if f"'{word}'" in source or f'"{word}"' in source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt for a conversation; TemplateError names the model and the reason.

        `variables` are further ones that a template may know, such as enable_thinking.
        """
        _check_roles(messages)
        flags = {"tools": tools or None, "add_generation_prompt": add_generation_prompt}
        return self._rendered(messages, {**(variables or {}), **flags})

    def render_pair(
        self, query: str, document: str, *, instruction: str = "", add_generation_prompt: bool
    ) -> Prompt:
        """The prompt that asks how well a document fits a query: messages with these two roles.

        So sentence-transformers renders pairs for cross-encoders that are decoders; an instruction
        is the system's message. Raises TemplateError as `render` does.
        """
        given = {"system": instruction, "query": query, "document": document}
        messages = [{"role": role, "content": text} for role, text in given.items()]
        flags = {"tools": None, "add_generation_prompt": add_generation_prompt}
        return self._rendered(messages[not instruction :], flags)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> Prompt:
        name = self._choose(bool(variables["tools"]))
        try:
            given = {**self._special_tokens, "documents": None, **_plain(variables)}
            given["messages"] = [self._prepared(name, message) for message in messages]
            text = self._sandbox.render_within_limits(self._compile(name), given)
            return Prompt(str.__str__(text), trusted_ranges(text))
        except REFUSALS as broken:
            line = getattr(broken, "lineno", None)
            place = f", line {line}" if line else ""
            reason = str(broken) or type(broken).__name__
            raise TemplateError(
                f"the chat template of {self._origin}{place} refused: {reason}"
            ) from broken

    def _prepared(self, name: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template takes it; its role, being one of ours, is no user's text."""
        if not self._loops_over_content(name):
            message = _with_joined_text(message)
        named = _with_reasoning_names(_plain(message))
        return {**named, "role": TrustedText(named["role"])}

    def _choose(self, has_tools: bool) -> str:
        if not self._sources:
            raise TemplateError(
                f"{self._origin} has no chat template, so it cannot chat; use it to complete texts "
                "(`spaninfer generate`, /v1/completions), or pass one with --chat-template FILE"
            )
        if has_tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" not in self._sources:
            raise TemplateError(
                f"{self._origin} has the chat templates {', '.join(sorted(self._sources))}, "
                "none of them called default"
            )
        return "default"

    def _compile_new(self, name: str) -> jinja2.Template:
        return self._sandbox.compile_within_limits(self._sources[name])


def _check_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    for number, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or role not in ROLES:
            raise TemplateError(
                f"message {number} has the role {role!r}; allowed are {', '.join(sorted(ROLES))}"
            )


def _with_joined_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with a content of several text parts as one text, a line for each."""
    content = message.get("content")
    if not isinstance(content, (list, tuple)):
        return message
    if any(not isinstance(part, Mapping) or part.get("type") != "text" for part in content):
        return message
    return {**message, "content": "\n".join(str(part.get("text", "")) for part in content)}


def _with_reasoning_names(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under the names that templates look for, as transformers
    gives it to them.
    """
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """The value in plain lists, objects, texts and numbers; others by the name of their type.

    So a template meets no methods of the caller's objects, and no text that claims to be trusted.
    """
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case Mapping():
            return {_plain(key): _plain(inner) for key, inner in value.items()}
        case list():
            return [_plain(inner) for inner in value]
        case tuple():
            return tuple(_plain(inner) for inner in value)
    return f"<{type(value).__name__}>"
