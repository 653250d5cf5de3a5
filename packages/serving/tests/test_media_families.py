"""Vision and audio families over HTTP, beyond the one of test_media_inputs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from media_asking import ask, details, heard, refused, say, tokenized
from seeing_families import OTHER_TEXTS, SEEING
from seeing_folder import (
    AUDIO,
    VISUAL,
    picture,
    png,
    save_first_qwen_vl_or_audio,
    save_hearing,
    save_seeing,
    tone,
)
from spaninfer_engine import Engine
from spaninfer_engine.spec.describe import list_specs


def test_low_detail_is_512_pixels_a_side_and_the_others_are_the_models_own(
    connect: Callable[..., openai.OpenAI], tmp_path: Path
) -> None:
    folder, large = save_seeing(tmp_path, most_tokens=1024), png(728, 728)
    options: Any = {"weights": "dummy", "memory": "8MiB", "max_len": 1024}
    with Engine(folder, backend="reference", **options) as engine:
        client = connect(engine)

        def tokens(**detail: str) -> int:
            return details(ask(client, picture(large, **detail), max_tokens=1))["image_tokens"]

        own = (728 // 28) ** 2
        assert [tokens(), tokens(detail="auto"), tokens(detail="high")] == [own] * 3
        assert tokens(detail="low") == (512 // 28) ** 2
        small = picture(png(56, 84), detail="low")  # is not made larger
        assert details(ask(client, small, max_tokens=1))["image_tokens"] == 6


@pytest.mark.parametrize(
    ("tower", "parts", "counts"),
    [
        ({"visual": VISUAL}, (picture(png(28, 84)), picture(png(9, 9))), {"image_tokens": 32}),
        ({"audio": AUDIO}, (heard(4), heard(10)), {"audio_tokens": 10 + 25 + 4}),
    ],
    ids=["Qwen-VL", "Qwen-Audio"],
)
def test_models_of_2023_without_a_template_and_a_processor_answer_about_media(
    tower: Any, parts: Any, counts: Any, connect: Callable[..., openai.OpenAI], tmp_path: Path
) -> None:
    folder = save_first_qwen_vl_or_audio(tmp_path, **tower)
    options: Any = {"weights": "dummy", "memory": "8MiB", "max_len": 512}
    with Engine(folder, backend="reference", **options) as engine:
        client = connect(engine)

        answer = ask(client, say("See "), *parts, say(" and say."))
        found = tokenized(client, say("See "), *parts, say(" and say."))

    assert {name: details(answer)[name] for name in counts} == counts
    assert answer.usage.completion_tokens == 6
    assert found["count"] == answer.usage.prompt_tokens


def test_qwen2_audio_hears_clips_over_http(
    connect: Callable[..., openai.OpenAI], tmp_path: Path
) -> None:
    options: Any = {"weights": "dummy", "memory": "8MiB", "max_len": 512}
    with Engine(save_hearing(tmp_path), backend="reference", **options) as engine:
        client = connect(engine)
        content = (say("First "), heard(4), say(" then "), heard(10), say("."))

        answer = ask(client, *content)
        told = refused(client, picture(png(28, 28)))

        clips = [{"type": "audio", "audio": tone(tenths)} for tenths in (4, 10)]
        parts = [say("First "), clips[0], say(" then "), clips[1], say(".")]
        messages = [{"role": "user", "content": parts}]
        expected = engine.chat(messages, max_tokens=6, temperature=0.0, ignore_eos=True)

    assert details(answer)["audio_tokens"] == 10 + 25  # 25 a second
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.prompt_tokens == len(expected.prompt_ids)
    assert "this model takes audio" in told["message"]


@pytest.mark.parametrize("name", SEEING)
def test_two_images_and_text_in_any_order_are_answered_as_by_the_engine(
    name: str, connect: Callable[..., openai.OpenAI], tmp_path: Path
) -> None:
    family, files = SEEING[name], [png(56, 84, seed) for seed in range(2)]
    first, second = ({"type": "image", "image": file} for file in files)
    asked = [
        [first, say("What?")],
        [say("See "), second, say(" and "), first],
        [first, second, say("?")],
    ]
    options: Any = {"weights": "dummy", "memory": "8MiB", "max_len": 640, "span_len": 16}
    greedy: Any = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    more = {"ignore_eos": True, "return_token_ids": True}
    with Engine(family.save(tmp_path), backend="reference", **options) as engine:
        client = connect(engine)
        answers = [
            ask(client, *map(_over_http, content), max_tokens=4, extra_body=more)
            for content in asked
        ]
        expected = [
            engine.chat([{"role": "user", "content": content}], **greedy) for content in asked
        ]

    for answer, told in zip(answers, expected, strict=True):
        assert answer.choices[0].token_ids == list(told.token_ids)
        assert answer.usage.prompt_tokens == len(told.prompt_ids)
    beside = family.tokens if family.beside is None else family.beside
    counts = [details(answer)["image_tokens"] for answer in answers]
    assert counts == [family.tokens, 2 * beside, 2 * beside]


def _over_http(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message to the engine as one to its server."""
    return picture(part["image"]) if "image" in part else part


def test_every_family_that_sees_is_asked_over_http() -> None:
    seeing = {each.name for each in list_specs() if each.kind == "vlm"}

    assert seeing == {*SEEING, *OTHER_TEXTS, "qwen_vl"}  # the last is asked above
