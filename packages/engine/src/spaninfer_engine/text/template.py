"""Chat templates: messages to prompt text, in which users' words can never become control tokens.

A user may write "<|im_end|>" in a message. After rendering, nobody can tell it from the
template's own; so it is told apart before. Every character of a user's text with which a control
token begins gets a mark behind it, every character with which one ends a mark in front, the mark
being a rare character that occurs nowhere in the input:

    control tokens <s> and <|im_end|>, mark M      "a <|im_end|> b"  →  "a <M|im_endM|> b"

The tokenizer looks for control tokens first and drops the marks afterwards, so only tokens whose
ends the template wrote are found. Templates also cut texts ("content.split('</think>')"). Marking
goes character by character, so a marked literal is found in a marked text exactly where the plain
one is found in the plain text: the template's literals that are looked for are marked alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2

from spaninfer_engine.errors import TemplateError
from spaninfer_engine.text.sandbox import Sandbox

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
"""Roles a message may have. Templates build control tokens of them ("<|" + role + "|>")."""

RARE = range(0x20000, 0x2A6D0)
"""Where marks are taken from: rare Chinese characters, which are neither space nor letter case
and which `repr` (how templates print lists) leaves as they are."""


PIECE = 1 << 16
"""Characters of a long text that are looked at together."""

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
    """A rendered conversation, for `Tokenizer.encode(text, parse_special=True, mark=mark)`.

    `text` may contain `mark` (None: it does not); `plain` is without it, for people to read.
    """

    text: str
    mark: str | None = None

    @property
    def plain(self) -> str:
        """The text that the model will see."""
        return self.text.replace(self.mark, "") if self.mark else self.text


class ChatTemplate:
    """A model's chat template.

    `source` is Jinja text, or several by name, of which "default" is used (and "tool_use" when
    there are tools); None for a model without one: it is an error only when a chat is rendered.
    `origin` names the model in messages. `special_tokens` are variables such as bos_token.
    `controls` are the texts of the control tokens that users must not write.
    """

    def __init__(
        self,
        source: str | Mapping[str, str] | None,
        *,
        origin: str,
        special_tokens: Mapping[str, str],
        controls: Collection[str],
    ) -> None:
        self._sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._origin = origin
        self._special_tokens = dict(special_tokens)
        self._firsts = frozenset(text[0] for text in controls)
        self._lasts = frozenset(text[-1] for text in controls)
        self._sandbox = Sandbox()
        self._compile = lru_cache(maxsize=8)(self._compile_new)
        self._loops_over_content = lru_cache(
            lambda name: self._sandbox.loops_over_content(self._sources[name])
        )

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
        name = self._choose(bool(tools))
        asked = {
            "documents": None,
            **(variables or {}),
            "messages": messages,
            "tools": tools or None,
        }
        try:
            return self._render(name, asked, add_generation_prompt)
        except REFUSALS as broken:
            line = getattr(broken, "lineno", None)
            place = f", line {line}" if line else ""
            reason = str(broken) or type(broken).__name__
            raise TemplateError(
                f"the chat template of {self._origin}{place} refused: {reason}"
            ) from broken

    def _render(self, name: str, asked: dict[str, Any], add_generation_prompt: bool) -> Prompt:
        if not self._loops_over_content(name):
            asked["messages"] = [_with_joined_text(message) for message in asked["messages"]]
        mark = self._choose_mark(asked)
        given = _map_texts(asked, lambda text: self._protect(text, mark) if mark else text)
        given |= {"add_generation_prompt": add_generation_prompt, **self._special_tokens}
        template = self._compile(name, mark)
        return Prompt(self._sandbox.render_within_limits(template, given), mark)

    def _choose(self, has_tools: bool) -> str:
        if not self._sources:
            raise TemplateError(
                f"{self._origin} has no chat template, so it cannot chat: have it continue texts "
                "(`spaninfer generate`, /v1/completions), or give one with --chat-template FILE"
            )
        if has_tools and "tool_use" in self._sources:
            return "tool_use"
        if "default" not in self._sources:
            raise TemplateError(
                f"{self._origin} has the chat templates {', '.join(sorted(self._sources))}, "
                "none of them called default"
            )
        return "default"

    def _choose_mark(self, variables: Mapping[str, Any]) -> str | None:
        """A character that nothing here contains; None if no text can hold a control token."""
        in_users_texts = _letters(_texts(variables))
        used = in_users_texts | _letters(self._sources.values())
        if not in_users_texts & (self._firsts | self._lasts):
            return None
        free = next((chr(code) for code in RARE if chr(code) not in used), None)
        if free is None:
            raise TemplateError("the messages use all 42000 characters that could mark their text")
        return free

    def _protect(self, text: str, mark: str) -> str:
        for char in self._firsts | self._lasts:  # five times as fast as str.translate
            before = mark if char in self._lasts else ""
            after = mark if char in self._firsts else ""
            text = text.replace(char, before + char + after)
        return text

    def _compile_new(self, name: str, mark: str | None) -> jinja2.Template:
        protect = None if mark is None else lambda text: self._protect(text, mark)
        return self._sandbox.compile_within_limits(self._sources[name], protect)


def _check_roles(messages: Iterable[Mapping[str, Any]]) -> None:
    for number, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
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


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of lists and objects, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _letters(texts: Iterable[str]) -> set[str]:
    """All characters of texts; piece by piece, since a set of 8 MB would take 150 ms in one go,
    in which no other thread could run.
    """
    found: set[str] = set()
    for text in texts:
        for start in range(0, len(text), PIECE):
            found.update(text[start : start + PIECE])
    return found


def _map_texts(value: Any, change: Any) -> Any:
    """The value with all its texts changed; keys only where they are no plain names."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key if str(key).isidentifier() else change(str(key)): _map_texts(inner, change)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_map_texts(inner, change) for inner in value]
    return value
