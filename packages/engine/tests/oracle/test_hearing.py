"""Audio models end to end, from raw sound to greedy tokens, against transformers."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from asked_parts import user
from hearing import AUDIO, SAMPLE_RATE, heard_inputs, save_hearing, sound
from oracle import Oracle
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine
from whole_models import (
    assert_told_as_by,
    greedy_options,
    logits_behind,
    media_of,
    noise_of,
    rendered,
)

torch = pytest.importorskip("torch")

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


def test_weights_are_found_under_the_names_that_transformers_5_17_saves(
    tiny: tuple[Path, Oracle], tmp_path: Path
) -> None:
    folder, oracle = tiny
    renamed = copytree(folder, tmp_path / "renamed")
    file, text = renamed / "model.safetensors", "language_model.model."
    tensors = {
        name.replace(f"{text}model.", text).replace(text, f"{text}model."): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file)

    assert_heard(renamed, oracle, "reference", CONVERSATIONS[-1:])


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


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("graphs", [False, True], ids=["one by one", "graphs"])
def test_on_a_gpu_log_probabilities_are_no_further_from_float32_than_those_of_transformers(
    graphs: bool, dtype: str, tmp_path: Path
) -> None:
    exact = save_hearing("tiny", tmp_path, rounded=True).model
    noisy = deepcopy(exact).to("cuda", getattr(torch, dtype))
    ours, theirs = list[float](), list[float]()
    options = {"max_len": 768, "memory": "64MiB", "encoder_memory": "1MiB", "step_tokens": 64}
    with Engine(tmp_path, backend="cuda", dtype=dtype, graphs=graphs, **options) as engine:  # type: ignore[arg-type]
        for messages in CONVERSATIONS:
            told = engine.chat(messages, **{**GREEDY, "max_tokens": 12})
            given = heard_inputs(
                tmp_path, rendered(tmp_path, messages), media_of(messages, "audio")
            )
            first = given["input_ids"].shape[1] - 1
            wanted, other = (
                logits_behind(model, given, told.token_ids)[first:-1].log_softmax(-1)
                for model in (exact, noisy)
            )
            for total, more in zip((ours, theirs), noise_of(told, wanted, other), strict=True):
                total += more

    assert np.square(ours).mean() <= 1.2 * np.square(theirs).mean()
