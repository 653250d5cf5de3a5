"""Vision models whose images have sizes or texts of their own, end to end, against transformers and
its processors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_parts import image, user
from seeing import SMALL, drawn
from seeing_tiles import TILED_FAMILIES, WIDE_TILED_FAMILIES, inputs_of, save_tiled
from spaninfer_engine import Engine
from spaninfer_engine.errors import ConfigError, InvalidMedia, RequestError, TemplateError
from spaninfer_multimodal import Video, load_processors
from whole_models import (
    assert_told_as_by,
    greedy_options,
    logits_behind,
    media_of,
    noise_of,
    rendered,
)

torch = pytest.importorskip("torch")

BACKENDS = ("reference", "torch", "cpu")


class Seeing:
    """A model in a folder, and engines on it."""

    def __init__(self, name: str, folder: Path, *, rounded: bool = False) -> None:
        self.name, self.folder = name, folder
        self.oracle = save_tiled(name, folder, rounded=rounded)
        self.pads = (TILED_FAMILIES | WIDE_TILED_FAMILIES)[name].pads.values()
        self.greedy = greedy_options(self.pads)

    def engine(self, backend: str, **options: Any) -> Engine:
        return Engine(self.folder, backend=backend, **{**SMALL, **options})


@pytest.fixture(scope="module", params=TILED_FAMILIES)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing("gemma3_vl", tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module", params=BACKENDS)
def running(request: pytest.FixtureRequest, seeing: Seeing) -> Iterator[Engine]:
    with seeing.engine(request.param, step_tokens=24) as engine:
        yield engine


CONVERSATIONS: dict[str, Sequence[Any]] = {
    "one image": [user("What is this? ", image(56, 84))],
    "images next to each other": [
        user(image(28, 28), image(84, 140, 1), "?"),
        {"role": "assistant", "content": "A cat."},
        user("And\n", image(300, 30, 2), "\nor", image(28, 28), "!"),
    ],
    "a large image": [user(image(400, 330), "?")],
    "a long image": [user(image(60, 500), "?")],
    "no media": [user("Hello!")],
}


def assert_as_expected(seeing: Seeing, messages: Sequence[Any], told: Any) -> None:
    """Compare prompt, greedy tokens and their log-probabilities with transformers' own."""
    text, videos = rendered(seeing.folder, messages), {}
    for video in media_of(messages, "video"):  # prepared by ours: theirs needs torchvision
        tiles: Any = load_processors(seeing.folder).vision
        pixels = tiles.video(video).pixels
        videos["pixel_values_videos"] = torch.from_numpy(pixels.copy())[None]
        text = text.replace("<video>", "<video>" * (len(pixels) * 16 + 1))
    given = inputs_of(seeing.name, seeing.folder, text, media_of(messages, "image"))

    assert_told_as_by(seeing.oracle.model, {**given, **videos}, told, seeing.pads)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_greedy_tokens_are_those_of_transformers(
    name: str, seeing: Seeing, running: Engine
) -> None:
    told = running.chat(CONVERSATIONS[name], **seeing.greedy)

    assert_as_expected(seeing, CONVERSATIONS[name], told)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WIDE_TILED_FAMILIES)
def test_a_wide_tower_sees_as_exactly_from_pictures_to_tokens(
    name: str, backend: str, tmp_path: Path
) -> None:
    seeing = Seeing(name, tmp_path)
    messages = CONVERSATIONS["images next to each other"]

    with seeing.engine(backend, step_tokens=24) as engine:
        told = engine.chat(messages, **seeing.greedy)

    assert_as_expected(seeing, messages, told)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_video_beside_an_image_is_seen_as_by_transformers(backend: str, tmp_path: Path) -> None:
    seeing = Seeing("llava_onevision", tmp_path)
    frames = np.stack([drawn(40, 60, seed) for seed in range(3)])
    video = {"type": "video", "video": Video(frames, (0, 5, 10), 5.0, 15)}
    messages = [user("Look: ", video, " and ", image(90, 30), "?")]

    with seeing.engine(backend, step_tokens=24) as engine:
        told = engine.chat(messages, **seeing.greedy)

    assert_as_expected(seeing, messages, told)


# ---- Mistral 3 and Llama 4, whose images have texts between their tokens -------------------------


@pytest.fixture(scope="module", params=["mistral3", "llama4_vl"])
def parted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 84), (84, 1), (1, 1)],  # a pixel thin, as long as may be
        [(84, 84), (20, 300)],
        [(14, 14)] * 3 + [(15, 29)],
    ],
    ids=str,
)
def test_images_of_any_shape_in_any_order_are_seen_as_by_transformers(
    sizes: list[tuple[int, int]], backend: str, parted: Seeing
) -> None:
    pictures = [image(*size, seed) for seed, size in enumerate(sizes)]
    asked = [[user("See ", *pictures, "?")], [user(*reversed(pictures))]]

    with parted.engine(backend, step_tokens=24) as engine:
        told = engine.chat(asked, **parted.greedy)

    for messages, answer in zip(asked, told, strict=True):
        assert_as_expected(parted, messages, answer)


def test_a_prefix_that_ends_within_an_image_of_several_runs_is_reused(parted: Seeing) -> None:
    asked = [user(image(60, 84), tail) for tail in ("What?", "Where?")]
    with parted.engine("cpu", span_len=4) as engine:
        for messages in ([asked[0]], [asked[1]], [user(image(60, 84, 1), "What?")], [asked[0]]):
            told = engine.chat(messages, **parted.greedy)
            assert_as_expected(parted, messages, told)
        stats = engine.stats()

    assert stats.encoded_media == 2
    assert stats.prefix_hit_tokens > 0


def test_words_of_a_user_that_look_like_an_image_are_words(parted: Seeing) -> None:
    words = f"{TILED_FAMILIES[parted.name].writes['image']}<|patch|>[IMG_END]"
    with parted.engine("cpu") as engine:
        plain, prompt = (engine.encode_chat([user(image(60, 84), text)]) for text in ("", words))

    assert len(prompt) == len(plain) + len(words)  # a token per byte
    (pad,) = set(parted.pads)
    (item,) = prompt.media.items  # type: ignore[attr-defined]
    assert list(prompt).count(pad) == item.input.num_tokens


def test_a_template_that_drops_an_image_is_refused(tmp_path: Path) -> None:
    seeing = Seeing("mistral3", tmp_path)
    file = tmp_path / "chat_template.jinja"
    file.write_text(file.read_text(encoding="utf-8").replace("{{ '[IMG]' }}", ""), encoding="utf-8")

    with (
        seeing.engine("cpu") as engine,
        pytest.raises(TemplateError, match="wrote 0 placeholders of kind image for 4"),
    ):
        engine.chat([user(image(56, 84), "?")], **seeing.greedy)


def test_an_image_too_thin_for_lines_is_refused_by_name(tmp_path: Path) -> None:
    seeing = Seeing("mistral3", tmp_path)
    with (
        seeing.engine("cpu") as engine,
        pytest.raises(InvalidMedia, match="1 x 200: scaled to 84 x 84, its short side is less"),
    ):
        engine.chat([user(image(200, 1), "?")], **seeing.greedy)


# ---- Gemma 3, whose images are seen whole --------------------------------------------------------


def test_a_prefix_that_ends_within_an_image_is_reused(gemma: Seeing) -> None:
    asked = [user(image(84, 84), tail) for tail in ("What?", "Where?")]
    with gemma.engine("cpu", span_len=8) as engine:
        for messages in ([asked[0]], [asked[1]], [asked[0]]):
            told = engine.chat(messages, **gemma.greedy)
            assert_as_expected(gemma, messages, told)
        stats = engine.stats()

    assert stats.encoded_media == 1
    assert stats.prefix_hit_tokens > 0


def test_images_beside_decodes_and_each_other_are_seen_whole(gemma: Seeing) -> None:
    asked = [[user("Tell me.")]] + [[user(image(56, 56, seed), "What?")] for seed in (3, 4, 3)]
    with gemma.engine("cpu", step_tokens=17, span_len=8) as engine:
        told = engine.chat(asked, **{**gemma.greedy, "max_tokens": 20})

    for messages, answer in zip(asked, told, strict=True):
        assert_as_expected(gemma, messages, answer)


def test_preempted_requests_see_their_images_again(gemma: Seeing) -> None:
    asked = [[user(image(84, 84, seed), "What is this?")] for seed in range(3)]
    spans = 22 * 8 * 4 * 2 * 2 * 24 * 4  # of two requests and a half
    with gemma.engine("cpu", span_len=8, max_len=112, memory=spans) as engine:
        told = engine.chat(asked, **{**gemma.greedy, "max_tokens": 40})
        assert engine.stats().preemptions > 0

    for messages, answer in zip(asked, told, strict=True):
        assert_as_expected(gemma, messages, answer)


def test_what_an_image_that_is_seen_whole_forbids_is_refused_by_name(gemma: Seeing) -> None:
    messages = [user(image(84, 84), "What?")]
    with (
        gemma.engine("cpu", step_tokens=15) as engine,
        pytest.raises(RequestError, match="step_tokens of 16 or more"),
    ):
        engine.chat(messages, **gemma.greedy)
    with (
        gemma.engine("cpu") as engine,
        pytest.raises(RequestError, match=r"prompt_logprobs.*see later ones"),
    ):
        engine.chat(messages, **gemma.greedy, prompt_logprobs=1)


def test_crops_of_images_are_refused_by_name(tmp_path: Path) -> None:
    seeing = Seeing("gemma3_vl", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    config = {**json.loads(file.read_text(encoding="utf-8")), "do_pan_and_scan": True}
    file.write_text(json.dumps(config), encoding="utf-8")

    with seeing.engine("cpu") as engine, pytest.raises(ConfigError, match="set it to false"):
        engine.chat([user(image(84, 84), "What?")], **seeing.greedy)


# ---- backend cuda --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", TILED_FAMILIES)
def test_on_a_gpu_log_probabilities_are_no_further_from_float32_than_those_of_transformers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    seeing = Seeing(name, tmp_path, rounded=True)
    exact = seeing.oracle.model
    noisy = deepcopy(exact).to("cuda", getattr(torch, dtype))
    ours, theirs = list[float](), list[float]()
    options = {"memory": "64MiB", "step_tokens": 64, "graphs": True, "dtype": dtype}
    with seeing.engine("cuda", **options) as engine:
        for sizes in ([(56, 84)], [(300, 200)], [(40, 60), (90, 30)], [(60, 500)]):
            pictures = [image(*size, seed) for seed, size in enumerate(sizes)]
            messages = [user("See ", *pictures, "What is this?")]
            told = engine.chat(messages, **{**seeing.greedy, "max_tokens": 16})
            text, seen = rendered(seeing.folder, messages), media_of(messages, "image")
            given = inputs_of(name, seeing.folder, text, seen)
            wanted, other = (
                logits_behind(model, given, told.token_ids)[
                    len(told.prompt_ids) - 1 : -1
                ].log_softmax(-1)
                for model in (exact, noisy)
            )
            for total, more in zip((ours, theirs), noise_of(told, wanted, other), strict=True):
                total += more

    assert np.square(ours).mean() <= 1.2 * np.square(theirs).mean()
