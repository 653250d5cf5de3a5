"""The content of messages: what a template would drop is refused by its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from assembled import END, engine, parts
from spaninfer_engine import Engine, InvalidPrompt
from spaninfer_engine.text.template import ChatTemplate

KNOWS_THINKING = """{% for message in messages %}{% for part in message.content %}
{%- if part.type == 'thinking' %}{{ part.thinking }}{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endfor %}"""

CALLS = [{"type": "function", "function": {"name": "look", "arguments": {}}}]


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    with engine() as running:
        yield running


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (["hello"], r"messages\[1\]\.content\[0\] is 'hello'; allowed is an object such as"),
        ({"type": "text", "text": "hello"}, "message 1 has the content {'text'.*; allowed are"),
        ([{"type": "txt", "text": "a"}], r"\[1\]\.content\[0\] has the type 'txt'; .* text; did"),
        ([{"text": "a"}], r"messages\[1\]\.content\[0\] has no type; allowed are text"),
        ([{"type": ["text"]}], r"messages\[1\]\.content\[0\] has the type \['text'\]"),
        (
            [{"type": "text", "text": "a"}, {"type": "image_ur", "image_url": {"url": "x"}}],
            r"messages\[1\]\.content\[1\] has the type 'image_ur'; allowed are text",
        ),
        ([{"type": "thinking", "thinking": "a"}], "has the type 'thinking'; allowed are text"),
        ([{"type": "text"}], r"messages\[1\]\.content\[0\] has no text; allowed is a string"),
        ([{"type": "text", "text": 5}], r"\.content\[0\] has the text 5; allowed is a string"),
        (5, "message 1 has the content 5; allowed are text and a list of parts"),
        (b"a", "message 1 has the content b'a'"),
        (None, "message 1 has no content; allowed are"),
    ],
)
def test_content_of_another_form_is_refused_by_its_place(
    running: Engine, content: object, words: str
) -> None:
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": content}]
    for call in (running.chat, running.encode_chat, running.render_chat):
        with pytest.raises(InvalidPrompt, match=words):
            call(messages)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": None, "tool_calls": CALLS},
    ],
)
def test_a_message_without_content_is_refused(running: Engine, message: dict[str, Any]) -> None:
    with pytest.raises(InvalidPrompt, match="message 0 has no content; allowed are"):
        running.encode_chat([message])


@pytest.mark.parametrize("said", [{"tool_calls": CALLS}, {"reasoning_content": "a"}])
@pytest.mark.parametrize(
    ("content", "text"),
    [({}, "<end>"), ({"content": None}, "None<end>")],  # as this template writes them
    ids=["without", "none"],
)
def test_an_assistant_may_say_something_else_than_content(
    running: Engine, said: dict[str, Any], content: dict[str, Any], text: str
) -> None:
    assert running.render_chat([{"role": "assistant", **said, **content}]).text == text


def test_text_parts_and_no_parts_are_content(running: Engine) -> None:
    several = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    assert running.render_chat([{"role": "user", "content": several}]).text == "a\nb<end>"
    assert running.encode_chat([{"role": "user", "content": ""}]) == [END]
    running.encode_chat([{"role": "user", "content": []}])


def test_parts_that_a_template_alone_knows_are_left_to_it() -> None:
    template = ChatTemplate(KNOWS_THINKING, origin="thinker", special_tokens={})
    content = [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]
    with Engine(replace(parts(), template=template)) as thinker:
        assert thinker.render_chat([{"role": "assistant", "content": content}]).text == "ab"
