"""Prompts with media against transformers: token ids of its processors, positions of its models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from seeing import IDS, drawn, save_processor, save_tokenizer
from spaninfer_engine.errors import TemplateError
from spaninfer_engine.preprocess.expand import expand_frames, expand_media
from spaninfer_engine.preprocess.layout import MediaLayout
from spaninfer_engine.preprocess.parts import MediaPart, media_parts, without_sources
from spaninfer_engine.preprocess.prepared import PreparedMedia
from spaninfer_engine.preprocess.processor import MediaProcessor
from spaninfer_engine.request.media import TowerInput, runs_within
from spaninfer_engine.text import ChatTemplate, Prompt, Tokenizer, open_tokenizer
from spaninfer_multimodal import Video, load_processors

transformers = pytest.importorskip("transformers", minversion="5.0", reason="is the oracle")
torch = pytest.importorskip("torch")

PADS = {"image": IDS["<|image_pad|>"], "video": IDS["<|video_pad|>"], "audio": 263}
SECOND = MediaLayout(placeholders=PADS, has_mrope=True)  # Qwen2-VL
SECOND_AND_A_HALF = MediaLayout(placeholders=PADS, has_mrope=True, tokens_per_second=2.0)
THIRD = MediaLayout(placeholders=PADS, has_mrope=True, frame_marks=(259, 260))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_processor(save_tokenizer(tmp_path_factory.mktemp("seeing")))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return open_tokenizer(folder, end_ids=frozenset({IDS["<|im_end|>"]}))


def image(height: int, width: int, seed: int = 0) -> dict[str, Any]:
    return {"type": "image", "image": drawn(height, width, seed)}


def clip(num_frames: int, height: int, width: int, fps: float = 2.0) -> dict[str, Any]:
    frames = np.stack([drawn(height, width, seed) for seed in range(num_frames)])
    return {"type": "video", "video": Video(frames, tuple(range(num_frames)), fps, num_frames)}


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def rendered(folder: Path, messages: Sequence[dict[str, Any]]) -> Prompt:
    source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, origin="seeing", special_tokens={})
    return template.render(without_sources(messages))


def made(folder: Path, tokenizer: Tokenizer, messages: list[Any], layout: MediaLayout) -> Any:
    processor = MediaProcessor(load_processors(folder), layout, tokenizer)
    media = [processor.prepare(part) for part in media_parts(messages)]
    return processor.prompt(rendered(folder, messages), media)


CONVERSATIONS = {
    "one image": [user(image(56, 84), say("What is this?"))],
    "images of several sizes": [
        user(say("First"), image(28, 28), say("and"), image(140, 56, 1), image(70, 200, 2)),
        {"role": "assistant", "content": "Two."},
        user(image(28, 28), say("again <|image_pad|>?")),
    ],
    "no image": [user(say("Hello!"))],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_ids_are_those_of_transformers_processor(
    name: str, folder: Path, tokenizer: Tokenizer
) -> None:
    messages = CONVERSATIONS[name]
    prompt = made(folder, tokenizer, messages, SECOND)

    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = theirs.apply_chat_template(
        [_harmless(message) for message in messages], tokenize=False, add_generation_prompt=True
    )
    expected = theirs(_expanded(text, [part.source for part in media_parts(messages)]))["input_ids"]

    assert _spelled(prompt, tokenizer) == _spelled(expected, tokenizer)


def _expanded(text: str, pictures: Sequence[Any]) -> str:
    """Return what transformers' processor makes of a text; whole, it would need torchvision."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = transformers.Qwen2VLProcessor.__new__(transformers.Qwen2VLProcessor)
    processor.image_token, processor.video_token = "<|image_pad|>", "<|video_pad|>"
    processor.image_processor = Qwen2VLImageProcessorPil(
        min_pixels=28 * 28, max_pixels=28 * 28 * 64
    )
    made = processor.image_processor(list(pictures)) if pictures else {}
    replacements = [processor.replace_image_token(made, at) for at in range(len(pictures))]
    whole: str = processor.get_text_with_replacements([text], replacements)[0][0]
    return whole


def _harmless(message: dict[str, Any]) -> dict[str, Any]:
    """Transformers would take a user's words for control tokens, so they are spelled otherwise."""
    if isinstance(message["content"], str):
        return message
    texts = (
        {**part, "text": part.get("text", "").replace("<|", "<¦")} for part in message["content"]
    )
    return {**message, "content": list(texts)}


def _spelled(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Return what ids stand for, a user's "<|" as `_harmless` has it; control tokens by number."""
    text = "".join(
        f"\0{each}\0" if each >= 256 else tokenizer.token_bytes(each).decode("latin-1")
        for each in ids
    )
    return text.replace("<|", "<¦").replace("<Â¦", "<¦").split("\0")


@pytest.mark.parametrize(
    ("layout", "model"),
    [(SECOND, "Qwen2VL"), (SECOND_AND_A_HALF, "Qwen2_5_VL"), (THIRD, "Qwen3VL")],
    ids=["Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL"],
)
def test_positions_are_those_of_transformers_models(
    layout: MediaLayout, model: str, folder: Path, tokenizer: Tokenizer
) -> None:
    messages = [
        user(say("See"), image(56, 84), clip(5, 112, 140, fps=1.7), say("then"), clip(2, 84, 28)),
        user(image(28, 112), say("which?")),
    ]
    prompt = made(folder, tokenizer, messages, layout)

    expected, delta = _their_positions(model, prompt)

    np.testing.assert_array_equal(prompt.media.positions, expected)
    assert prompt.media.delta == delta


def _their_positions(model: str, prompt: Any) -> tuple[Any, int]:
    vision = {"spatial_merge_size": 2, "tokens_per_second": 2, "depth": 0, "num_hidden_layers": 0}
    text = {"hidden_size": 16, "num_hidden_layers": 0, "num_attention_heads": 2, "head_dim": 8,
            "num_key_value_heads": 2, "vocab_size": 272, "intermediate_size": 8}  # fmt: skip
    config = getattr(transformers, f"{model}Config")(vision_config=vision, text_config=text)
    with torch.device("meta"):  # a tower of no layers has a gigabyte of weights beside them
        whole = getattr(transformers, f"{model}ForConditionalGeneration")(config)
    ids = list(prompt)
    types = [1 if each == PADS["image"] else 2 if each == PADS["video"] else 0 for each in ids]
    grids: dict[str, list[Any]] = {"image": [], "video": []}
    for item in prompt.media.items:
        grids[item.input.kind].append(item.input.grid_thw)
    more = {}
    if model == "Qwen2_5_VL":  # seconds between two rows of the grid: two frames of 1.7 and of 2
        more["second_per_grid_ts"] = [2 / 1.7, 1.0]
    positions, delta = whole.model.get_rope_index(
        torch.tensor([ids]),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(grids["image"]),
        video_grid_thw=torch.tensor(grids["video"]),
        **more,
    )
    return positions[:, 0].numpy(), int(delta)


def test_runs_of_an_item_are_its_rows_in_order(folder: Path, tokenizer: Tokenizer) -> None:
    messages = [user(clip(4, 56, 56), say("and"), image(28, 56))]
    prompt = made(folder, tokenizer, messages, THIRD)

    video, picture = prompt.media.items
    pads = [at for at, each in enumerate(prompt) if each == PADS["video"]]

    assert [length for _, length in video.runs] == [4, 4]  # two frames of a temporal patch each
    assert [at for first, length in video.runs for at in range(first, first + length)] == pads
    assert [run.row for run in prompt.media.runs() if run.item == 0] == [0, 4]
    assert picture.input.num_tokens == 2
    first, _ = video.runs[1]
    inside = list(runs_within(prompt.media.runs(), first + 1, first + 3))
    assert [(run.start, run.stop, run.row) for run in inside] == [(first + 1, first + 3, 5)]


def test_frames_of_the_third_generation_stand_behind_their_times(
    folder: Path, tokenizer: Tokenizer
) -> None:
    prompt = made(folder, tokenizer, [user(say("See:"), clip(4, 28, 28))], THIRD)

    text = tokenizer.decode(list(prompt), skip_special=False)
    start, pad, end = "<|vision_start|>", "<|video_pad|>", "<|vision_end|>"
    assert f"See:<0.2 seconds>{start}{pad}{end}<1.2 seconds>{start}{pad}{end}<|im_end|>" in text


def test_frames_are_put_where_the_template_wrote_and_nowhere_else() -> None:
    text = "a<s><v><e>b<v>"
    prompt = expand_frames(Prompt(text, ((1, 10),)), ("<s>", "<v>", "<e>"), [[0.0, 1.0]])

    assert prompt.text == "a<0.0 seconds><s><v><e><1.0 seconds><s><v><e>b<v>"
    assert prompt.trusted == ((1, len(prompt.text) - 4),)


def test_a_template_without_a_place_for_media_is_refused_by_name(tokenizer: Tokenizer) -> None:
    medium = PreparedMedia(TowerInput("image", np.zeros((4, 1), np.float32), 1, b"", (1, 2, 2)))
    ids = tokenizer.encode("Hello!", add_special=False)

    with pytest.raises(TemplateError, match=r"wrote 0 placeholders of kind image for 1: .*--chat"):
        expand_media(ids, [medium], SECOND)


def test_a_clip_of_sound_takes_one_position_per_token() -> None:
    medium = PreparedMedia(TowerInput("audio", np.zeros((4, 8), np.float32), 3, b"a"))

    prompt = expand_media([1, PADS["audio"], 2], [medium], MediaLayout(placeholders=PADS))

    assert list(prompt) == [1, *[PADS["audio"]] * 3, 2]
    assert prompt.media.positions is None
    assert prompt.media.items[0].runs == ((1, 3),)


def test_behind_a_long_video_positions_go_on_behind_its_largest(
    folder: Path, tokenizer: Tokenizer
) -> None:
    prompt = made(folder, tokenizer, [user(clip(24, 28, 28), say("!"))], SECOND)

    positions = prompt.media.positions
    ((first, length),) = prompt.media.items[0].runs
    assert length == 12
    assert positions[:, first + length].tolist() == [positions[0, first] + 12] * 3


def test_a_part_says_its_own_sizes(folder: Path, tokenizer: Tokenizer) -> None:
    processor = MediaProcessor(load_processors(folder), SECOND, tokenizer)
    part = {**image(280, 280), "max_pixels": 4 * 28 * 28}

    small = processor.prepare(media_parts([user(part)])[0])
    large = processor.prepare(media_parts([user(image(280, 280))])[0])

    assert (small.input.num_tokens, large.input.num_tokens) == (4, 64)
    assert small.input.digest != large.input.digest
    assert processor.sampling({"num_frames": 6.0}).num_frames == 6
    assert processor.sampling({"fps": 4.0}).fps == 4.0
    assert isinstance(media_parts([user(part)])[0], MediaPart)


# ---- rows that replace the tokens around a placeholder, too (Qwen-Audio) -------------------------


def heard(num_tokens: int) -> PreparedMedia:
    return PreparedMedia(TowerInput("audio", np.zeros((1, 1), np.float32), num_tokens, bytes(32)))


MARKED = MediaLayout(placeholders={"audio": 7}, replaced_marks=(8, 9))


def test_rows_replace_the_marks_around_a_placeholder() -> None:
    prompt = expand_media([8, 7, 9, 1, 8, 7, 9], [heard(5), heard(3)], MARKED)

    assert list(prompt) == [8, 7, 7, 7, 9, 1, 8, 7, 9]
    assert [item.runs for item in prompt.media.items] == [((0, 5),), ((6, 3),)]


@pytest.mark.parametrize("ids", [[7, 9], [8, 7], [1, 7, 9], [8, 7, 1], [9, 7, 8]])
def test_a_placeholder_without_its_marks_is_refused(ids: list[int]) -> None:
    with pytest.raises(TemplateError, match="without the tokens that begin and end"):
        expand_media(ids, [heard(4)], MARKED)


# ---- many placeholders (CVE-2025-46560) ----------------------------------------------------------

MANY = 100_000
MOST_CPU_S = 60.0  # replaced by searching anew behind each, they would take hours


def test_a_hundred_thousand_placeholders_take_time_that_grows_with_their_number() -> None:
    pad, rows = PADS["image"], np.zeros((4, 1), np.float32)
    media = [PreparedMedia(TowerInput("image", rows, 1, b"", (1, 2, 2)))] * MANY
    began_s = process_time()

    prompt = expand_media([1, pad] * MANY, media, SECOND)

    assert process_time() - began_s < MOST_CPU_S
    assert list(prompt) == [1, pad] * MANY
    assert len(prompt.media.items) == MANY


def test_a_hundred_thousand_frames_take_time_that_grows_with_their_number() -> None:
    text, times = "<s><v><e>", [float(at) for at in range(MANY)]
    began_s = process_time()

    prompt = expand_frames(Prompt(text, ((0, len(text)),)), ("<s>", "<v>", "<e>"), [times])

    assert process_time() - began_s < MOST_CPU_S
    assert prompt.text.count("<v>") == MANY


def test_a_hundred_thousand_placeholders_that_a_user_wrote_are_text(
    folder: Path, tokenizer: Tokenizer
) -> None:
    prompt = rendered(folder, [user(say("<|image_pad|>" * MANY))])
    began_s = process_time()

    ids = tokenizer.encode(prompt.text, parse_special=prompt.trusted)

    assert process_time() - began_s < MOST_CPU_S
    assert PADS["image"] not in ids
