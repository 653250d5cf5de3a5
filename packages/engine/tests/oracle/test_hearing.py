"""From raw sound to greedy tokens, beside transformers' whole models and processors."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asked_parts import user
from hearing import AUDIO, SAMPLE_RATE, heard_inputs, save_hearing, sound
from oracle import Oracle
from spaninfer_engine import Engine
from whole_models import assert_told_as_by, greedy_options, media_of, rendered

pytest.importorskip("torch")

GREEDY = greedy_options([AUDIO])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("hearing")
    return folder, save_hearing("tiny", folder)


def clip(seconds: float, seed: int = 0) -> dict[str, Any]:
    return {"type": "audio", "audio": sound(seconds, seed)}


CONVERSATIONS: Sequence[Sequence[Any]] = [
    [user(clip(0.7), "What is it?")],
    [
        user("First ", clip(2.0, 1), "then ", clip(0.05, 2)),
        {"role": "assistant", "content": "A bell."},
        user(clip(1.234, 3), "and this?"),
    ],
    [user("Hello!")],
]


def assert_heard(folder: Path, oracle: Oracle, backend: str, asked: Sequence[Any]) -> None:
    options = {"max_len": 768, "memory": "16MiB", "encoder_memory": "1MiB", "step_tokens": 24}
    with Engine(folder, backend=backend, **options) as engine:
        told = engine.chat(asked, **GREEDY)

    for messages, answer in zip(asked, told, strict=True):
        given = heard_inputs(folder, rendered(folder, messages), media_of(messages, "audio"))
        assert_told_as_by(oracle.model, given, answer, [AUDIO])


@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_greedy_tokens_about_sounds_are_those_of_transformers(
    backend: str, tiny: tuple[Path, Oracle]
) -> None:
    assert_heard(*tiny, backend, CONVERSATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "torch", "cpu"])
def test_a_wide_tower_hears_as_exactly_from_sound_to_tokens(backend: str, tmp_path: Path) -> None:
    oracle = save_hearing("wide", tmp_path)

    assert_heard(tmp_path, oracle, backend, [[user(clip(5.5), "And ", clip(0.31, 4), "?")]])


def test_a_wave_file_is_heard_as_its_samples(tiny: tuple[Path, Oracle]) -> None:
    pytest.importorskip("av")
    samples = (sound(0.7) * 20_000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, 2, SAMPLE_RATE, len(samples), "NONE", ""))
        made.writeframes(samples.tobytes())
    folder, oracle = tiny
    messages = [user({"type": "audio", "audio": file.getvalue()}, "?")]

    with Engine(folder, backend="cpu", max_len=256, memory="4MiB") as engine:
        told = engine.chat(messages, **GREEDY)

    exact = samples.astype(np.float32) / 32768
    given = heard_inputs(folder, rendered(folder, messages), [exact])
    assert_told_as_by(oracle.model, given, told, [AUDIO])
