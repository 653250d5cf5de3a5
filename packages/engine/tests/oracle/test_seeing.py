"""Vision models end to end, from images to greedy tokens, against transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_parts import image, user
from oracle import Oracle
from PIL import Image as Pillow
from seeing import IDS, SEEING, SMALL, WIDE_SEEING, drawn, save_model
from spaninfer_engine import Engine
from spaninfer_engine.errors import InvalidMedia, RequestError
from spaninfer_multimodal import Video
from whole_models import noise_of

torch = pytest.importorskip("torch")

PADS = {IDS["<|image_pad|>"]: 1, IDS["<|video_pad|>"]: 2}
NO_PADS = dict.fromkeys(PADS, -100.0)  # transformers would look for their media
GREEDY = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True, "logit_bias": NO_PADS}
BACKENDS = ("reference", "torch", "cpu")


class Seeing:
    """A model in a folder, and engines on it."""

    def __init__(self, name: str, folder: Path, dtype: str = "float32") -> None:
        self.name, self.folder = name, folder
        self.oracle = save_model(name, folder, dtype=dtype)

    def engine(self, backend: str, **options: Any) -> Engine:
        return Engine(self.folder, backend=backend, **{**SMALL, **options})


@pytest.fixture(scope="module", params=SEEING)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=BACKENDS)
def running(request: pytest.FixtureRequest, seeing: Seeing) -> Iterator[Engine]:
    with seeing.engine(request.param, step_tokens=24) as engine:
        yield engine


def clip(num_frames: int, height: int, width: int, fps: float = 2.0) -> dict[str, Any]:
    frames = np.stack([drawn(height, width, 50 + seed) for seed in range(num_frames)])
    return {"type": "video", "video": Video(frames, tuple(range(num_frames)), fps, num_frames)}


def expected(oracle: Oracle, prompt: Any, told: Sequence[int]) -> list[int]:
    """Return greedy tokens of transformers' model over the same ids and patches, each behind those
    that were told before it: the first that was told wrongly is none of them.
    """
    logits = logits_of(oracle.model, prompt, [*prompt, *told])
    greedy: list[int] = without_pads(logits)[len(prompt) - 1 : -1].argmax(-1).tolist()
    return greedy


def logits_of(model: Any, prompt: Any, ids: Sequence[int], **given: Any) -> Any:
    """Return the logits [T V] of transformers' model over ids that begin with the prompt."""
    items = prompt.media.items if hasattr(prompt, "media") else ()
    for kind, pixels in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        made = [item.input for item in items if item.input.kind == kind]
        if made:
            given[pixels] = torch.from_numpy(np.concatenate([each.numbers for each in made]))
            given[f"{kind}_grid_thw"] = torch.tensor([each.grid_thw for each in made])
    if "Qwen2_5" in type(model).__name__ and "pixel_values_videos" in given:
        given["second_per_grid_ts"] = SECONDS_PER_GRID
    types = [PADS.get(each, 0) if at < len(prompt) else 0 for at, each in enumerate(ids)]
    given |= {"input_ids": torch.tensor([ids]), "mm_token_type_ids": torch.tensor([types])}
    on_device = {
        key: each.to(model.device, model.dtype if each.is_floating_point() else each.dtype)
        if isinstance(each, torch.Tensor)
        else each
        for key, each in given.items()
    }
    with torch.no_grad():
        return model(**on_device, use_cache=False).logits[0].float().cpu()


def without_pads(logits: Any) -> Any:
    """Return logits of which none is that of a token that stands for media."""
    return logits.index_fill(-1, torch.tensor(list(PADS)), -torch.inf)


SECONDS_PER_GRID = [2 / 2.0, 2 / 1.5]  # of the two clips below

# Videos are no longer than wide: behind longer ones transformers 5 goes on inside the video.
CONVERSATIONS: dict[str, Sequence[Any]] = {
    "one image": [user("What is this? ", image(56, 84))],
    "images and a video in any order": [
        user(image(28, 28), "first, then ", clip(4, 56, 112), " and ", image(84, 140, 1), "?"),
        {"role": "assistant", "content": "A cat."},
        user("And ", clip(3, 28, 84, fps=1.5), image(28, 28), "!"),
    ],
    "no media": [user("Hello!")],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_greedy_tokens_are_those_of_transformers(
    name: str, seeing: Seeing, running: Engine
) -> None:
    messages = CONVERSATIONS[name]

    told = running.chat(messages, **GREEDY)

    prompt = running.encode_chat(messages)
    assert told.prompt_ids == tuple(prompt)
    assert list(told.token_ids) == expected(seeing.oracle, prompt, told.token_ids)


@pytest.fixture(scope="module", params=WIDE_SEEING)
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp("wide"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wide_tower_sees_as_exactly_from_pictures_to_tokens(backend: str, wide: Seeing) -> None:
    messages = CONVERSATIONS["images and a video in any order"]

    with wide.engine(backend, step_tokens=24) as engine:
        told, prompt = engine.chat(messages, **GREEDY), engine.encode_chat(messages)

    assert list(told.token_ids) == expected(wide.oracle, prompt, told.token_ids)


def positions_by_definition(name: str, prompt: Any, count: int) -> Any:
    """Return the positions [3 T] of a prompt and `count` tokens behind it.

    Text counts up on all axes; a medium's tokens have their place in its grid, from where the text
    before it ended; text behind it continues at the largest position so far plus one.
    """
    grids = iter([item.input.grid_thw for item in prompt.media.items])
    step = {"qwen2_vl": 1, "qwen2_5_vl": 2}[name]  # tokens a second, of clips with 2 frames in it
    columns: list[tuple[int, int, int]] = []
    ids, at, ahead = list(prompt), 0, 0
    while at < len(ids):
        if ids[at] in PADS:
            frames, height, width = next(grids)
            places = product(range(frames), range(height // 2), range(width // 2))
            run = [(ahead + step * t, ahead + h, ahead + w) for t, h, w in places]
        else:
            run = [(ahead, ahead, ahead)]
        columns += run
        at, ahead = at + len(run), max(map(max, run)) + 1
    columns += [(ahead + more,) * 3 for more in range(count)]
    return torch.tensor(columns).T


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_behind_a_video_longer_than_wide_text_goes_on_at_the_largest_position(
    name: str, backend: str, tmp_path: Path
) -> None:
    """Positions are given to transformers: its release 5 counts on inside such a video."""
    seeing = Seeing(name, tmp_path)
    messages = [user("See ", clip(16, 28, 56), " and tell: what moves?")]
    with seeing.engine(backend, step_tokens=24) as engine:
        told, prompt = engine.chat(messages, **GREEDY), engine.encode_chat(messages)
    tokens = list(told.token_ids)
    (video,) = prompt.media.items  # type: ignore[attr-defined]
    assert video.input.grid_thw == (8, 2, 4)

    places = positions_by_definition(name, prompt, len(tokens))[:, None]
    ids = [*prompt, *tokens]
    logits = logits_of(seeing.oracle.model, prompt, ids, position_ids=places)

    assert tokens == without_pads(logits)[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_requests_beside_each_other_see_their_own_pictures(seeing: Seeing, running: Engine) -> None:
    asked = [[user(image(56, 56, seed), "What?")] for seed in (3, 4, 3, 5)] + [[user("What?")]]

    told = running.chat(asked, **GREEDY)

    for messages, answer in zip(asked, told, strict=True):
        wanted = expected(seeing.oracle, running.encode_chat(messages), answer.token_ids)
        assert list(answer.token_ids) == wanted
        assert len(wanted) == 8


def test_ten_turns_about_one_picture_encode_it_once(seeing: Seeing) -> None:
    with seeing.engine("cpu") as engine:
        messages = [user(image(84, 84), "What is this?")]
        for turn in range(10):
            told = engine.chat(messages, **GREEDY)
            messages += [{"role": "assistant", "content": told.text}, user(f"And {turn}?")]
            if turn in (0, 9):
                prompt = engine.encode_chat(messages[: 2 * turn + 1])
                wanted = expected(seeing.oracle, prompt, told.token_ids)
                assert list(told.token_ids) == wanted
                assert len(wanted) == 8

        assert engine.stats().encoded_media == 1
        assert engine.stats().prefix_hit_tokens > 0


def test_a_preempted_request_sees_its_picture_again(seeing: Seeing) -> None:
    asked = [[user(image(84, 84, seed), "What is this?")] for seed in range(3)]
    long = {**GREEDY, "max_tokens": 40}

    # Of the third, keys are wider, and pictures go to three layers; states are kept beside one.
    is_third = seeing.name.startswith("qwen3_vl")
    spans = 18 * 8 * (3 * 2 * 2 * (24 if is_third else 16) * 4)  # a request of these and a half
    if seeing.name.startswith("qwen3_5"):
        spans = 100_000  # a request of 112 tokens takes 60,864
    one = 9 * 64 * 4 * (3 if is_third else 1)
    with seeing.engine("cpu", span_len=8, max_len=112, memory=spans, encoder_memory=one) as engine:
        told = engine.chat(asked, **long)
        stats = engine.stats()

        for messages, answer in zip(asked, told, strict=True):
            wanted = expected(seeing.oracle, engine.encode_chat(messages), answer.token_ids)
            assert list(answer.token_ids) == wanted
            assert len(wanted) == 40
        assert stats.preemptions > 0


def test_pictures_come_as_files_bytes_arrays_and_pictures(running: Engine, tmp_path: Path) -> None:
    pixels = drawn(56, 84)
    file = tmp_path / "noise.png"
    Pillow.fromarray(pixels).save(file)

    prompts = [
        running.encode_chat([user({"type": "image", "image": source}, "What?")])
        for source in (file, str(file), file.read_bytes(), Pillow.fromarray(pixels), pixels)
    ]

    assert len({each.media.items[0].input.digest for each in prompts}) == 1  # type: ignore[attr-defined]
    assert len({tuple(each) for each in prompts}) == 1


def test_what_cannot_be_used_is_refused_with_its_place(running: Engine, tmp_path: Path) -> None:
    for part, reason in {
        "nothing": ({"type": "image", "image": tmp_path / "absent.png"}, "cannot be read"),
        "torn": ({"type": "image", "image": b"no picture"}, "is no image that can be read"),
        "a URL": ({"type": "image", "image": "https://example.com/a.png"}, "--media-fetch"),
        "a number": ({"type": "image", "image": 7}, "allowed is a path"),
        "no source": ({"type": "video"}, "has no video"),
        "another option": ({**image(28, 28), "fps": 2}, "max_pixels, min_pixels"),
        "no size between": ({**image(28, 28), "min_pixels": 10**6}, "no size lies between"),
        "another kind": ({"type": "audio", "audio": b""}, "this model takes image, video"),
    }.values():
        with pytest.raises(InvalidMedia, match=reason) as refused:
            running.chat([user("See: ", part)], **GREEDY)
        assert refused.value.place == "messages[0].content[1]"


def test_a_picture_larger_than_the_memory_of_encodings_is_refused_by_name(seeing: Seeing) -> None:
    with (
        seeing.engine("cpu", encoder_memory=4 * 256) as engine,
        pytest.raises(RequestError, match="has 9 tokens; the memory of encodings holds"),
    ):
        engine.chat([user(image(84, 84))], **GREEDY)


# ---- backend cuda --------------------------------------------------------------------------------

TOLD = 8  # most likely tokens whose log-probabilities are compared


@pytest.fixture(scope="module")
def rounded(seeing: Seeing, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    """The same model with weights in bfloat16."""
    return Seeing(seeing.name, tmp_path_factory.mktemp("rounded"), dtype="bfloat16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_log_probabilities_are_no_further_from_float32_than_those_of_transformers(
    graphs: bool, dtype: str, rounded: Seeing
) -> None:
    exact = rounded.oracle.model
    noisy = deepcopy(exact).to("cuda", getattr(torch, dtype))
    ours, theirs = list[float](), list[float]()
    options = {"memory": "64MiB", "step_tokens": 64, "graphs": graphs, "dtype": dtype}
    with rounded.engine("cuda", **options) as engine:
        for messages in CONVERSATIONS.values():
            prompt = engine.encode_chat(messages)
            told = engine.chat(messages, **{**GREEDY, "max_tokens": 48}, logprobs=TOLD)
            ids = [*prompt, *told.token_ids]
            wanted, other = (
                logits_of(model, prompt, ids)[len(prompt) - 1 : -1].log_softmax(-1)
                for model in (exact, noisy)
            )
            for total, more in zip((ours, theirs), noise_of(told, wanted, other), strict=True):
                total += more

    # Where rounding sends a token to another expert, one such token decides the mean of either.
    share = 4.0 if "moe" in rounded.name else 1.2
    assert np.square(ours).mean() <= share * np.square(theirs).mean()


@pytest.mark.gpu
def test_on_a_gpu_too_ten_turns_encode_a_picture_once(rounded: Seeing) -> None:
    with rounded.engine("cuda", memory="64MiB", graphs=True) as engine:
        messages = [user(image(84, 84), "What is this?")]
        for turn in range(10):
            told = engine.chat(messages, **GREEDY)
            messages += [{"role": "assistant", "content": told.text}, user(f"And {turn}?")]

        assert engine.stats().encoded_media == 1
        assert told.usage.cached_len > 0


@pytest.mark.gpu
def test_on_a_gpu_requests_beside_each_other_see_their_own_pictures(rounded: Seeing) -> None:
    asked = [[user(image(56, 56, seed), "What?")] for seed in (3, 4, 3, 5)] + [[user("What?")]]
    with rounded.engine("cuda", memory="64MiB", graphs=True) as engine:
        together = engine.chat(asked, **GREEDY)
        prompts = [engine.encode_chat(messages) for messages in asked]

    assert together[0].token_ids == together[2].token_ids
    for prompt, answer in zip(prompts, together, strict=True):
        ids = [*prompt, *answer.token_ids]
        logits = logits_of(rounded.oracle.model, prompt, ids)[len(prompt) - 1 : -1]
        likely = without_pads(logits).log_softmax(-1)
        for at, token in enumerate(answer.token_ids):  # or one that rounding cannot tell apart
            assert likely[at].max() - likely[at, token] < 0.3
