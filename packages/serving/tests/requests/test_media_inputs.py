"""Media over HTTP through OpenAI's client, over real sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import openai
import pytest
from media_asking import ask, details, refused, say, tokenized
from media_mutations import wrong_part
from seeing_folder import (
    film,
    picture,
    png,
    tone,
    url,
)
from spaninfer_engine import Engine
from spaninfer_engine.errors import ConfigError
from spaninfer_multimodal import DecodePool
from spaninfer_serving import Settings


def test_an_image_is_answered_as_the_engine_answers_it(
    connect: Callable[..., openai.OpenAI], seeing_engine: Engine
) -> None:
    client, data = connect(), png(56, 84)

    answer = ask(client, say("What is this? "), picture(data))

    parts = [say("What is this? "), {"type": "image", "image": data}]
    messages = [{"role": "user", "content": parts}]
    told = seeing_engine.chat(messages, max_tokens=6, temperature=0.0, ignore_eos=True)
    assert answer.choices[0].message.content == told.text
    assert answer.usage.prompt_tokens == len(told.prompt_ids)
    assert details(answer)["image_tokens"] == 6


def test_a_stream_counts_media_in_its_usage(connect: Callable[..., openai.OpenAI]) -> None:
    events = list(
        ask(
            connect(),
            picture(png(28, 28)),
            picture(png(56, 28, 1)),
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert details(events[-1])["image_tokens"] == 1 + 2


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files that are decoded from now on."""
    files: list[bytes] = []
    submit = DecodePool.submit

    def counted(self: DecodePool, data: bytes, job: Any) -> Any:
        files.append(data)
        return submit(self, data, job)

    monkeypatch.setattr(DecodePool, "submit", counted)
    return files


@pytest.mark.parametrize(
    ("seed", "settings", "other_key", "salt", "times"),
    [
        (20, {"api_keys": ("one", "two")}, "two", None, 2),
        (21, {"api_keys": ("one", "two")}, "one", None, 1),
        (22, {"api_keys": ("one", "two")}, "one", "salted", 2),
        (23, {"api_keys": ("one", "two"), "share_prefixes": True}, "two", None, 1),
        (24, {}, "two", None, 1),
        (25, {}, "two", "salted", 2),
    ],
)
def test_what_a_picture_costs_tells_nothing_of_other_tenants(
    connect: Callable[..., openai.OpenAI],
    seeing_engine: Engine,
    decoded: list[bytes],
    seed: int,
    settings: dict[str, Any],
    other_key: str,
    salt: str | None,
    times: int,
) -> None:
    with connect(**settings) as client:
        shown = picture(png(56, 84, seed))
        first = client.with_options(api_key="one")
        second = client.with_options(api_key=other_key)
        encoded = seeing_engine.stats().encoded_media

        ask(first, shown, say("What is this?"))
        told = ask(second, say("And"), shown, extra_body={"cache_salt": salt, "ignore_eos": True})

    assert len(decoded) == times
    assert seeing_engine.stats().encoded_media == encoded + times
    assert details(told)["image_tokens"] == 6


def test_a_picture_that_comes_again_is_decoded_once(
    connect: Callable[..., openai.OpenAI],
    seeing_engine: Engine,
    tmp_path: Path,
    decoded: list[bytes],
) -> None:
    sent, opened = png(56, 84, 7), png(84, 56, 8)
    (tmp_path / "a.png").write_bytes(opened)
    named: Any = {"type": "image_url", "image_url": {"url": (tmp_path / "a.png").as_uri()}}
    client = connect(media_folder=tmp_path)
    encoded = seeing_engine.stats().encoded_media

    told = [ask(client, picture(sent), named, say(f"Turn {turn}.")) for turn in range(3)]

    assert sorted(decoded) == sorted([sent, opened]), "in any order: they are decoded side by side"
    assert seeing_engine.stats().encoded_media == encoded + 2
    assert {details(answer)["image_tokens"] for answer in told} == {12}
    (tmp_path / "a.png").write_bytes(png(84, 56, 9))
    ask(client, named)
    assert len(decoded) == 3


def test_videos_and_files_are_read(connect: Callable[..., openai.OpenAI]) -> None:
    client = connect()
    clip: Any = {"type": "video_url", "video_url": {"url": url(film(4, 28, 56), "video/webp")}}
    file: Any = {"type": "file", "file": {"file_data": url(png(28, 84)), "filename": "a.png"}}

    answer = ask(client, clip, say("and"), file)

    assert details(answer) == {"cached_tokens": 0, "video_tokens": 4, "image_tokens": 3}


def test_requests_say_how_large_and_how_many(connect: Callable[..., openai.OpenAI]) -> None:
    client = connect()
    large = png(1400, 1400)

    def tokens(*content: dict[str, Any], **options: Any) -> int:
        extra = {"ignore_eos": True, **({"mm_processor_kwargs": options} if options else {})}
        found = details(ask(client, *content, extra_body=extra))
        return found.get("image_tokens", 0) + found.get("video_tokens", 0)

    clip: Any = {"type": "video_url", "video_url": {"url": url(film(8, 28, 28), "video/webp")}}
    assert tokens(picture(large)) == 64
    assert tokens(picture(large), max_pixels=4 * 784) == 4
    more = {"mm_processor_kwargs": {"max_pixels": 10**9}}
    told = refused(client, picture(large), extra_body=more)
    assert told["param"] == "mm_processor_kwargs.max_pixels"
    assert tokens(clip) == 4
    assert tokens(clip, num_frames=2) == 1
    assert tokens(clip, fps=1.0) == 2


def test_what_cannot_be_used_is_refused_with_its_place_and_reason(
    connect: Callable[..., openai.OpenAI],
) -> None:
    client = connect()
    sound: Any = {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(tone()).decode(), "format": "wav"},
    }
    cases: list[tuple[Any, str]] = [
        ({"type": "image_url", "image_url": {"url": url(b"no picture")}}, "cannot be read"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,????"}}, "base64"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, "not fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "not fetched"),
        (sound, "this model takes image, video"),
        (picture(png(2, 800)), "no side may be more than 200 times"),
    ]
    for part, reason in cases:
        body = refused(client, part)
        assert reason in body["message"], body
        assert (body["param"], body["code"]) == ("messages[0].content[1]", "invalid_media")


def test_parts_and_options_of_unknown_kinds_are_refused_by_name(
    connect: Callable[..., openai.OpenAI],
) -> None:
    client = connect()
    pdf: Any = {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}}

    assert "image/*, video/* or audio/*" in refused(client, pdf)["message"]
    assert "messages[0].content[1]" in refused(client, {"type": "picture"})["param"]
    extra = {"mm_processor_kwargs": {"max_pixel": 3}}
    told = refused(client, picture(png(28, 28)), extra_body=extra)
    assert (told["param"], told["code"]) == ("mm_processor_kwargs.max_pixel", "unknown_parameter")


def test_an_opened_folder_and_only_what_is_below_it_is_read(
    connect: Callable[..., openai.OpenAI], tmp_path: Path
) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(28, 28))
    (tmp_path / "b.png").write_bytes(png(28, 28))
    client = connect(media_folder=folder)

    def named(path: Path) -> Any:
        return {"type": "image_url", "image_url": {"url": path.as_uri()}}

    assert details(ask(client, named(folder / "a.png")))["image_tokens"] == 1
    assert refused(client, named(tmp_path / "b.png"))["code"] == "invalid_media"


def test_addresses_that_are_not_public_are_not_fetched(
    connect: Callable[..., openai.OpenAI],
) -> None:
    client = connect(media_fetch=True)
    inside: Any = {"type": "image_url", "image_url": {"url": "https://127.0.0.1/a.png"}}

    assert "not public" in refused(client, inside)["message"]


def test_a_request_has_only_so_many_media(connect: Callable[..., openai.OpenAI]) -> None:
    body = refused(connect(max_media=1), picture(png(28, 28)), picture(png(28, 28)))

    assert body["code"] == "too_many_media"
    assert "--max-media" in body["message"]


def test_a_model_that_reads_text_alone_refuses_media_by_name(
    connect: Callable[..., openai.OpenAI], engine: Engine
) -> None:
    body = refused(connect(engine), picture(png(28, 28)))

    assert "this model (llama) reads text alone" in body["message"]
    assert (body["param"], body["code"]) == ("messages[0].content[1]", "invalid_media")


def test_media_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for given, reason in (
        ({"media_folder": tmp_path / "none"}, "there is no such folder"),
        ({"media_workers": 0}, "--media-workers is 0"),
        ({"max_media": 0}, "--max-media is 0"),
        ({"media_hosts": ("example.com",)}, "without --media-fetch"),
    ):
        with pytest.raises(ConfigError, match=reason):
            Settings(**given)  # type: ignore[arg-type]


# ---- /tokenize -----------------------------------------------------------------------------------


def test_tokenize_gives_the_ids_of_a_chat_with_the_places_of_its_media(
    connect: Callable[..., openai.OpenAI], seeing_engine: Engine
) -> None:
    client, data, video = connect(), png(56, 84), film(8, 28, 28)
    clip: Any = {"type": "video_url", "video_url": {"url": url(video, "video/webp")}}
    content = (say("See "), picture(data), say(" and "), clip, say("!"))

    found = tokenized(client, *content, return_token_strs=True)

    parts = [{"type": "image", "image": data}, {"type": "video", "video": video}]
    mixed = [say("See "), parts[0], say(" and "), parts[1], say("!")]
    assert found["tokens"] == list(seeing_engine.encode_chat([{"role": "user", "content": mixed}]))
    assert (found["tokens"].count(260), found["tokens"].count(261)) == (6, 4)
    assert found["count"] == ask(client, *content).usage.prompt_tokens == len(found["token_strs"])
    assert found["media"] == [
        {"part": "messages[0].content[1]", "kind": "image", "count": 6},
        {"part": "messages[0].content[3]", "kind": "video", "count": 4},
    ]
    options = {"mm_processor_kwargs": {"max_pixels": 784}}
    assert tokenized(client, picture(data), **options)["tokens"].count(260) == 1
    assert "media" not in tokenized(client, say("See."))


def test_tokenize_reads_media_within_the_limits_of_a_chat(
    connect: Callable[..., openai.OpenAI], engine: Engine
) -> None:
    seen = picture(png(28, 28))
    away: Any = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    for client, content, reason, param in (
        (connect(max_media=1), (seen, seen), "--max-media", "messages"),
        (connect(), (say("a"), away), "not fetched", "messages[0].content[1]"),
        (connect(engine), (seen,), "reads text alone", "messages[0].content[0]"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason) as refused:
            tokenized(client, *content)
        assert refused.value.param == param


def test_tokenize_refuses_options_of_media_beside_a_text_and_another_model_unread(
    connect: Callable[..., openai.OpenAI],
) -> None:
    client = connect()
    address = str(client.base_url).replace("/v1/", "/tokenize")
    body = {"prompt": "a", "mm_processor_kwargs": {"max_pixels": 784}}
    broken: Any = {"type": "image_url", "image_url": {"url": url(b"no picture")}}

    with pytest.raises(openai.BadRequestError, match="mm_processor_kwargs"):
        client.post(address, body=body, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        tokenized(client, broken, model="another")


def test_a_part_that_is_wrong_in_any_way_is_answered_or_refused_by_its_place(
    connect: Callable[..., openai.OpenAI],
) -> None:
    address = f"{connect().base_url}chat/completions"
    headers, refused = {"Content-Type": "application/json"}, 0
    with httpx.Client(timeout=120) as client:
        for seed in range(60):
            part = wrong_part(Random(seed))
            content = [say("What is this?"), part]
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}

            sent = json.dumps(body)
            answer = client.post(address, content=sent, headers=headers)

            assert answer.status_code in (200, 400), (seed, part, answer.text)
            if answer.status_code == 400:
                error = answer.json()["error"]
                has_place = str(error["param"]).startswith("messages[0].content[1]")
                is_json = error["code"] != "invalid_json"  # half of a letter is none
                assert has_place if is_json else "\\ud800" in sent, (seed, part, error)
                refused += 1
    assert refused > 30
