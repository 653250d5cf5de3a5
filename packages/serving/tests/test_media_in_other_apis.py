"""Media in /v1/responses and /v1/messages, as the official clients send them, over real sockets."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from seeing_folder import film, picture, png, save_seeing, tone, url
from spaninfer_engine import Engine

SEEN, OTHER = png(56, 84), png(28, 112, 1)
QUESTION = "What is this? "


@pytest.fixture(scope="module")
def looking_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = save_seeing(tmp_path_factory.mktemp("seeing"))
    options: Any = {"served_name": "tiny", "weights": "dummy", "memory": "8MiB", "max_len": 1024}
    with Engine(folder, backend="reference", **options) as engine:
        yield engine


@pytest.fixture
def clients(live: Callable[..., Any], looking_engine: Engine) -> SimpleNamespace:
    """OpenAI's client of a server with an engine that sees, and Anthropic's."""
    anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")
    host, port = live(looking_engine).address
    address = f"http://{host}:{port}"
    return SimpleNamespace(
        openai=openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0),
        anthropic=anthropic.Anthropic(base_url=address, api_key="none", max_retries=0),
    )


@pytest.fixture
def connected(live: Callable[..., Any], looking_engine: Engine) -> openai.OpenAI:
    host, port = live(looking_engine).address
    return openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)


def completed(client: openai.OpenAI, *messages: Any) -> tuple[str, int]:
    """Return what a chat completion says to the same, and the tokens of its prompt."""
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=6, temperature=0
    )
    return answer.choices[0].message.content, answer.usage.prompt_tokens


def respond(client: openai.OpenAI, *content: Any, **options: Any) -> Any:
    given: Any = [{"role": "user", "content": list(content)}]
    settings = {"model": "tiny", "max_output_tokens": 6, "temperature": 0, **options}
    return client.responses.create(input=given, **settings)


def say(ask: Callable[..., Any], messages: Any, **options: Any) -> Any:
    settings = {"model": "tiny", "messages": messages, "extra_body": {"temperature": 0}}
    return ask(**settings, **options)


def asks(text: str = QUESTION) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def image(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(data), "detail": "auto", **more}


def block(data: bytes) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def text(said: str = QUESTION) -> dict[str, Any]:
    return {"type": "text", "text": said}


def test_a_response_about_images_is_the_answer_of_a_chat(connected: openai.OpenAI) -> None:
    response = respond(connected, asks(), image(SEEN), asks(" or "), image(OTHER, detail="high"))

    content = [text(), picture(SEEN), text(" or "), picture(OTHER)]
    said, num_tokens = completed(connected, {"role": "user", "content": content})
    assert response.output_text == said
    assert response.usage.input_tokens == num_tokens


def test_files_of_a_response_are_images_and_videos(connected: openai.OpenAI) -> None:
    clip = url(film(4, 28, 56), "video/webp")
    response = respond(
        connected,
        {"type": "input_file", "file_data": url(SEEN), "filename": "a.png"},
        {"type": "input_file", "file_data": clip, "filename": "a.webp"},
        asks(),
    )

    seen = [picture(SEEN), {"type": "video_url", "video_url": {"url": clip}}, text()]
    said, num_tokens = completed(connected, {"role": "user", "content": seen})
    assert (response.output_text, response.usage.input_tokens) == (said, num_tokens)


def test_a_kept_response_goes_on_about_its_image(connected: openai.OpenAI) -> None:
    first = respond(connected, image(SEEN), asks(), instructions="Be short.")
    again = connected.responses.create(
        model="tiny",
        input="And now?",
        previous_response_id=first.id,
        max_output_tokens=6,
        temperature=0,
    )

    said, num_tokens = completed(
        connected,
        {"role": "user", "content": [picture(SEEN), text()]},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    )
    assert (again.output_text, again.usage.input_tokens) == (said, num_tokens)
    listing = connected.responses.input_items
    asked = listing.list(again.id, order="asc", include=["message.input_image.image_url"])
    plain = listing.list(again.id, order="asc")
    assert asked.data[0].content[0].image_url == url(SEEN)
    assert plain.data[0].content[0].image_url is None
    assert plain.data[0].content[1].text == QUESTION


REFUSED_PARTS: list[tuple[list[Any], str, str]] = [
    ([image(b"no picture")], "input[1].content[0]", "cannot be read"),
        ([asks(), {"type": "input_image", "image_url": "https://example.com/a.png"}],
         "input[1].content[1]", "not fetched"),
        ([asks(), image(png(2, 800))], "input[1].content[1]", "no side may be more than 200"),
        ([{"type": "input_audio", "input_audio": {
            "data": base64.b64encode(tone()).decode(), "format": "wav"}}],
         "input[1].content[0]", "this model takes image, video"),
        ([{"type": "input_file", "file_url": "https://example.com/clip.mp4"}],
         "input[1].content[0]", "not fetched"),
        ([{"type": "input_file", "file_url": "https://example.com/paper.pdf"}],
         "input[1].content[0].file_url", "the name of an image or a video"),
        ([{"type": "input_file", "file_data": url(b"x", "application/pdf")}],
         "input[1].content[0].file_data", "image/*, video/* or audio/*"),
        ([{"type": "input_file", "filename": "a.png"}], "input[1].content[0]", "not both"),
        ([{"type": "input_image", "file_id": "file-1"}], "input[1].content[0].file_id",
         "stores none"),
        ([{"type": "input_video"}], "input[1].content[0]", "allowed are input_text, input_image"),
]  # fmt: skip


def test_a_part_of_a_response_that_cannot_be_used_is_refused_by_its_own_name(
    connected: openai.OpenAI,
) -> None:
    for content, place, said in REFUSED_PARTS:
        messages: Any = [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": content},
        ]
        with pytest.raises(openai.BadRequestError) as caught:
            connected.responses.create(model="tiny", input=messages, instructions="Look.")

        told: Any = caught.value.body
        assert told["param"] == place, told
        assert said in told["message"], told


def test_only_users_show_media(connected: openai.OpenAI) -> None:
    for role in ("assistant", "system", "developer"):
        with pytest.raises(openai.BadRequestError, match="media are a user's") as caught:
            connected.responses.create(
                model="tiny",
                input=[{"role": role, "content": [image(SEEN)]}],  # type: ignore[list-item, misc]
            )
        assert caught.value.param == "input[0]"


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_a_result_of_a_tool_shows_images_in_each_api(clients: SimpleNamespace) -> None:
    asked = {"role": "user", "content": QUESTION}
    made = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    clip = url(film(4, 28, 56), "video/webp")
    shown = [asks("Here: "), image(SEEN), {"type": "input_file", "file_data": clip}]
    response = clients.openai.responses.create(
        model="tiny",
        input=[asked, made, {"type": "function_call_output", "call_id": "c1", "output": shown}],
        max_output_tokens=6,
        temperature=0,
    )
    film_part = {"type": "video_url", "video_url": {"url": clip}}
    content = [text("Here: "), picture(SEEN), film_part]
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "c1", "content": content}
    said, num_tokens = completed(clients.openai, asked, calling, result)
    stills = [text("Here: "), picture(SEEN)]
    of_stills, num_stills = completed(clients.openai, asked, calling, result | {"content": stills})
    _, num_blind = completed(clients.openai, asked, calling, result | {"content": "Here: "})
    used = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [text("Here: "), block(SEEN)]}
    turns = [asked, {"role": "assistant", "content": [used]}, {"role": "user", "content": [seen]}]
    message = say(clients.anthropic.messages.create, turns, max_tokens=6)
    listed = clients.openai.responses.input_items.list(
        response.id, order="asc", include=["message.input_image.image_url"]
    )

    assert (response.output_text, response.usage.input_tokens) == (said, num_tokens)
    usage = message.usage
    assert message.content[0].text == of_stills
    assert usage.input_tokens + usage.cache_read_input_tokens == num_stills
    assert num_tokens > num_stills > num_blind
    parts = listed.data[-1].output
    assert [part.type for part in parts] == ["input_text", "input_image", "input_file"]
    assert (parts[1].image_url, parts[2].file_data) == (url(SEEN), clip)


def test_media_in_a_result_that_cannot_be_used_are_refused_by_their_own_name(
    clients: SimpleNamespace,
) -> None:
    anthropic = pytest.importorskip("anthropic")
    broken = [asks(), image(b"no picture")]
    output = {"type": "function_call_output", "call_id": "c1", "output": broken}
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.responses.create(model="tiny", input=[output])
    assert caught.value.param == "input[0].output[1]"

    seen = {"type": "tool_result", "tool_use_id": "c1", "content": [text(), block(b"no picture")]}
    with pytest.raises(anthropic.BadRequestError, match=r"content\[0\].content\[1\] cannot"):
        say(clients.anthropic.messages.create, [{"role": "user", "content": [seen]}], max_tokens=6)


def test_blocks_of_another_role_are_refused(clients: SimpleNamespace) -> None:
    anthropic = pytest.importorskip("anthropic")
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
    used = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    for role, wrong in (("assistant", result), ("user", used)):
        with pytest.raises(anthropic.BadRequestError, match=str(wrong["type"])):
            say(
                clients.anthropic.messages.create,
                [{"role": role, "content": [wrong]}],
                max_tokens=6,
            )


def test_a_message_about_images_is_the_answer_of_a_chat(clients: SimpleNamespace) -> None:
    linked = {"type": "image", "source": {"type": "url", "url": url(OTHER)}}
    content = [text(), block(SEEN), text(" or "), linked]
    asked, messages = [{"role": "user", "content": content}], clients.anthropic.messages
    message = say(messages.create, asked, max_tokens=6)
    counted = say(messages.count_tokens, asked)
    with say(messages.stream, asked, max_tokens=6) as stream:
        streamed = stream.get_final_text()

    seen = [text(), picture(SEEN), text(" or "), picture(OTHER)]
    said, num_tokens = completed(clients.openai, {"role": "user", "content": seen})
    assert message.content[0].text == streamed == said
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == num_tokens
    assert counted.input_tokens == num_tokens


def test_a_document_is_its_title_its_text_and_its_images(clients: SimpleNamespace) -> None:
    pages = {"type": "content", "content": [text("One. "), block(SEEN)]}
    plain = {"type": "text", "media_type": "text/plain", "data": "All of it."}
    content = [
        {"type": "document", "title": "A book", "source": pages, "citations": {"enabled": False}},
        {"type": "document", "context": "An appendix", "source": plain},
        text(),
    ]
    asked = [{"role": "user", "content": content}]
    message = say(clients.anthropic.messages.create, asked, max_tokens=6)

    seen = [text("A book\nOne. "), picture(SEEN), text(f"An appendix\nAll of it.{QUESTION}")]
    said, num_tokens = completed(clients.openai, {"role": "user", "content": seen})
    assert message.content[0].text == said
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == num_tokens


REFUSED_BLOCKS: list[tuple[list[Any], str]] = [
        ([text(), block(b"no picture")], "messages[2].content[1] cannot be read"),
        ([{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}],
         "messages[2].content[0] cannot be read: 'file:///etc/passwd' is not fetched"),
        ([{"type": "document", "source": {"type": "content", "content": [
            text(), block(png(2, 800))]}}],
         "messages[2].content[0].source.content[1] the picture is 800 x 2"),
        ([{"type": "image", "source": {"type": "file", "file_id": "x"}}],
         "messages[2].content[0].source is not an image source"),
        ([{"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": "AA=="}}],
         "PDFs are sent as images of their pages"),
        ([{"type": "image", "source": {
            "type": "base64", "media_type": "image/bmp", "data": "AA=="}}],
         "messages[2].content[0].source.media_type"),
]  # fmt: skip


def test_a_block_that_cannot_be_used_is_refused_by_its_own_name(clients: SimpleNamespace) -> None:
    anthropic = pytest.importorskip("anthropic")
    messages = clients.anthropic.messages
    for content, said in REFUSED_BLOCKS:
        turns = [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": content},
        ]
        for ask, options in ((messages.count_tokens, {}), (messages.create, {"max_tokens": 6})):
            with pytest.raises(anthropic.BadRequestError) as caught:
                say(ask, turns, system="Be short.", **options)
            assert said in caught.value.body["error"]["message"], caught.value.body
