"""Vectors of texts against transformers, on every backend that computes in float32."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import ENCODERS, MAX_LEN, MODES, EncoderOracle, write_modules
from oracle import TOLERANCE, deviation, prompt
from shared_data import shared_data
from spaninfer_engine import Engine
from spaninfer_engine.config import BackendName

BACKENDS: tuple[BackendName, ...] = ("reference", "cpu", "torch")
TEXTS = [prompt(length, seed=length) for length in (7, 1, MAX_LEN, 30, 2, 19, 33)]


@pytest.fixture(scope="module", params=ENCODERS)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EncoderOracle, Path]:
    """An oracle and its checkpoint, whose names have a prefix where there is a head."""
    oracle = EncoderOracle(ENCODERS[request.param])
    return oracle, oracle.save(tmp_path_factory.mktemp("encoder"))


def engine(folder: Path, backend: BackendName, **options: Any) -> Engine:
    return Engine(folder, backend=backend, dtype="float32", **options)


@pytest.mark.parametrize("pooling", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_are_those_of_transformers(
    saved: tuple[EncoderOracle, Path], backend: BackendName, pooling: str
) -> None:
    oracle, folder = saved
    write_modules(folder, pooling)

    with engine(folder, backend) as encoder:
        vectors = encoder.embed(TEXTS)

    assert vectors.dtype == np.float32
    assert deviation(vectors, oracle.vectors(TEXTS, pooling)) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_text_has_the_same_vector_alone_and_in_steps_of_any_size(
    saved: tuple[EncoderOracle, Path], backend: BackendName
) -> None:
    oracle, folder = saved
    write_modules(folder, "mean")
    expected = oracle.vectors(TEXTS, "mean")

    with engine(folder, backend, step_tokens=40, max_running=2) as encoder:
        together = encoder.embed(TEXTS)
        num_steps = encoder.stats().steps
        alone = np.concatenate([encoder.embed([text]) for text in TEXTS])

    assert num_steps == 5  # 64, 33, 30, 19 + 7, 2 + 1
    assert deviation(together, expected) < TOLERANCE
    assert deviation(alone, expected) < TOLERANCE


@pytest.mark.model
@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_of_a_published_tokenizer_are_pooled_and_normalised_as_its_files_say(
    backend: BackendName, tmp_path: Path
) -> None:
    """BGE's tokenizer and its files of sentence-transformers, with random weights."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    published = shared_data("tokenizers", "bge-large-zh-v1.5")
    family = ENCODERS["with pooler"]
    wide = type(family)(family.model, family.config, {**family.arguments, "vocab_size": 21128})
    oracle = EncoderOracle(wide)
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    oracle.save(tmp_path)
    texts = ["Hello World, unaffordable!", "", "  你好 世界 x  ", "naïve Café"]
    ids = transformers.AutoTokenizer.from_pretrained(published)(texts)["input_ids"]
    expected = oracle.vectors(ids, "cls")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)

    with engine(tmp_path, backend) as encoder:
        vectors = encoder.embed(texts)

    assert deviation(vectors, expected) < TOLERANCE
