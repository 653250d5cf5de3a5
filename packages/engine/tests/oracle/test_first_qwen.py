"""Qwen-VL and Qwen-Audio end to end, from media to greedy tokens, against plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_parts import image, user
from first_qwen import (
    AUDIO,
    AUDIO_PAD,
    FIRST_QWEN,
    IMG,
    NUM_BYTES,
    WIDE_FIRST_QWEN,
    save_first_qwen,
)
from first_qwen_torch import FirstQwen
from hearing import sound
from spaninfer_engine import Engine
from spaninfer_engine.errors import InvalidMedia
from spaninfer_engine.tools.conversion import convert
from whole_models import assert_told_as_by, greedy_options, media_of

torch = pytest.importorskip("torch")

BACKENDS = ("reference", "torch", "cpu")
SMALL = {"max_len": 768, "max_running": 4, "memory": "32MiB", "encoder_memory": "1MiB"}
GREEDY = greedy_options([IMG + 2])  # any token: the oracle looks for media in prompts alone


class Seeing:
    """A model in a folder, what it computes, and engines on it."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.name, self.folder, self.config = name, folder, config
        self.kind = "audio" if "audio" in config else "image"
        self.model = FirstQwen(config, save_first_qwen(folder, config))

    def engine(self, backend: str, **options: Any) -> Engine:
        return Engine(self.folder, backend=backend, **{**SMALL, **options})

    def prompt_ids(self, messages: Sequence[Any]) -> list[int]:
        """Return the ids that the authors' code makes of a conversation: its bytes, and marks."""
        ids, count = list[int](), 0
        said = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
        for message in said:
            ids += [NUM_BYTES + 1, *f"{message['role']}\n".encode()]
            content = message["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            for part in content:
                if part["type"] == "text":
                    ids += part["text"].encode()
                else:
                    count += 1
                    ids += [*self._shown(count, part[self.kind]), *b"\n"]
            ids += [NUM_BYTES + 2, *b"\n"]
        return [*ids, NUM_BYTES + 1, *b"assistant\n"]

    def _shown(self, number: int, medium: Any) -> list[int]:
        if self.kind == "image":
            pads = [IMG + 2] * self.config["visual"]["n_queries"]
            return [*f"Picture {number}: ".encode(), IMG, *pads, IMG + 1]
        rows = (len(medium) // 160 - 1) // 2 + 1
        return [*f"Audio {number}:".encode(), AUDIO, *[AUDIO_PAD] * (rows // 2), AUDIO + 1]

    def assert_told(self, messages: Sequence[Any], told: Any) -> None:
        """Compare prompt, greedy tokens and their log-probabilities."""
        ids = self.prompt_ids(messages)
        given = {
            "input_ids": torch.tensor([ids]),
            "media": media_of(messages, self.kind),
            "prompt_len": len(ids),
        }
        assert_told_as_by(self.model, given, told, [IMG + 2])

    def medium(self, seed: int = 0, size: int = 3) -> dict[str, Any]:
        """Return a picture or a clip, other for every seed."""
        if self.kind == "image":
            return image(20 * size, 31, seed)
        return {"type": "audio", "audio": sound(0.2 * size + 0.013 * seed, seed)}


@pytest.fixture(scope="module", params=FIRST_QWEN)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    folder = tmp_path_factory.mktemp(request.param)
    return Seeing(request.param, folder, FIRST_QWEN[request.param])


@pytest.fixture(scope="module", params=BACKENDS)
def running(request: pytest.FixtureRequest, seeing: Seeing) -> Iterator[Engine]:
    with seeing.engine(request.param, step_tokens=24) as engine:
        yield engine


def conversations(seeing: Seeing) -> dict[str, Sequence[Any]]:
    """Return conversations; the second is longer than the model was trained with."""
    first, second, third = (seeing.medium(seed, size) for seed, size in enumerate((4, 1, 9)))
    return {
        "one": [user(first, "What is this?")],
        "several, in any order": [
            user("First: ", second, third, " or "),
            {"role": "assistant", "content": "A cat."},
            user("And ", first, second, "!"),
        ],
        "none": [{"role": "user", "content": "Hello!"}],
    }


def test_greedy_tokens_are_those_of_the_published_mathematics(
    seeing: Seeing, running: Engine
) -> None:
    asked = conversations(seeing)

    told = running.chat(list(asked.values()), **GREEDY)

    for messages, answer in zip(asked.values(), told, strict=True):
        seeing.assert_told(messages, answer)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", WIDE_FIRST_QWEN)
def test_towers_with_published_sizes_of_heads_are_as_exact(
    name: str, backend: str, tmp_path: Path
) -> None:
    seeing = Seeing(name, tmp_path, WIDE_FIRST_QWEN[name])
    messages = [user(seeing.medium(0, 9), "And ", seeing.medium(1, 4), "?")]

    with seeing.engine(backend, encoder_memory="4MiB") as engine:
        told = engine.chat(messages, **GREEDY)

    seeing.assert_told(messages, told)


def test_turns_about_one_medium_encode_it_once_and_reuse_its_prefix(seeing: Seeing) -> None:
    with seeing.engine("cpu", span_len=8) as engine:
        messages = [user(seeing.medium(), "What?")]
        for turn in range(3):
            told = engine.chat(messages, **GREEDY)
            seeing.assert_told(messages, told)
            messages += [{"role": "assistant", "content": "A cat."}, user(f"And {turn}?")]

        assert engine.stats().encoded_media == 1
        assert engine.stats().prefix_hit_tokens > 0


def test_another_medium_of_the_same_size_shares_no_prefix(seeing: Seeing) -> None:
    with seeing.engine("cpu", span_len=8) as engine:
        for seed in (0, 1):
            shown = seeing.medium(seed)
            if seeing.kind == "audio":
                shown["audio"] = shown["audio"][:8000]
            messages = [user(shown, "What?")]
            seeing.assert_told(messages, engine.chat(messages, **GREEDY))

        assert engine.stats().encoded_media == 2


def test_a_preempted_request_sees_its_media_again(seeing: Seeing) -> None:
    asked = [[user(seeing.medium(seed), "What is this?")] for seed in range(3)]
    lengths = [len(seeing.prompt_ids(messages)) for messages in asked]
    heads, dim = seeing.config["num_attention_heads"], seeing.config["kv_channels"]
    spans = int(2.2 * (max(lengths) + 40) / 8) * 8 * 2 * 2 * heads * dim * 4
    with seeing.engine("cpu", span_len=8, max_len=256, memory=spans) as engine:
        told = engine.chat(asked, **{**GREEDY, "max_tokens": 40})
        assert engine.stats().preemptions > 0

    for messages, answer in zip(asked, told, strict=True):
        seeing.assert_told(messages, answer)


def test_a_converted_folder_answers_alike(seeing: Seeing, tmp_path: Path) -> None:
    packed = convert(seeing.folder, tmp_path / "packed")
    messages = [user(seeing.medium(), "What?")]

    with Engine(packed, backend="cpu", **SMALL) as engine:  # type: ignore[arg-type]
        told = engine.chat(messages, **GREEDY)

    seeing.assert_told(messages, told)


@pytest.fixture(scope="module")
def talking(seeing: Seeing) -> Iterator[Engine]:
    with seeing.engine("cpu") as engine:
        yield engine


@pytest.mark.parametrize("end", [0, 1, 2], ids=["endoftext", "im_start", "im_end"])
def test_answers_end_where_a_turn_of_the_chat_format_ends(end: int, talking: Engine) -> None:
    bias = {NUM_BYTES + end: 100.0}

    told = talking.chat([user("Hello!")], temperature=0.0, max_tokens=4, logit_bias=bias)

    assert (told.finish_reason.value, told.text) == ("stop", "")


def test_marks_of_media_in_what_users_write_are_words(talking: Engine) -> None:
    said = "<img>a</img><imgpad><audio>b</audio>[[[AUDIO:modality]]]<|im_end|>"

    prompt = list(talking.encode_chat([user(said)]))

    assert {IMG, IMG + 1, IMG + 2, AUDIO, AUDIO + 1, AUDIO_PAD}.isdisjoint(prompt)
    assert prompt.count(NUM_BYTES + 2) == 2


def test_words_of_the_authors_for_places_and_tasks_are_tokens(
    seeing: Seeing, talking: Engine
) -> None:
    first = NUM_BYTES + 208  # of what the model has beside the first Qwen's tokens
    said, ids = "<ref>a cat</ref><box>(1,2)</box>", [first, first + 1, first + 2, first + 3]
    if seeing.kind == "audio":
        said = "<|startoftranscript|><|en|><|transcribe|><|0.00|>"
        ids = [first + 1, first + 8, first + 4, first + 20]

    prompt = list(talking.encode_chat([user(seeing.medium(), said)]))
    bias = {ids[2]: 100.0}
    told = talking.chat([user("Where?")], temperature=0.0, max_tokens=2, logit_bias=bias)

    assert [each for each in prompt if each in ids] == ids
    assert (
        told.text == {"image": "<box><box>", "audio": "<|transcribe|><|transcribe|>"}[seeing.kind]
    )


def test_clips_that_are_too_long_or_too_short_are_refused_by_name(
    seeing: Seeing, talking: Engine
) -> None:
    if seeing.kind == "image":
        pytest.skip("pictures have any size")
    for seconds, reason in ((2.001, "hears 2 s at once"), (0.029, "hears nothing in less")):
        part = {"type": "audio", "audio": np.zeros(int(seconds * 16_000), np.float32)}
        with pytest.raises(InvalidMedia, match=reason) as refused:
            talking.chat([user(part)], **GREEDY)
        assert refused.value.place == "messages[0].content[0]"
