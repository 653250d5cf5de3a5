"""Vectors of texts against transformers, on every backend that computes in float32."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import (
    CLASSIFIERS,
    CLS,
    DECODERS,
    ENCODERS,
    MAX_LEN,
    MODES,
    SEP,
    SIZES,
    EncoderOracle,
    write_modules,
    write_words,
)
from families import Family
from oracle import TOLERANCE, deviation, prompt
from shared_data import shared_data
from spaninfer_engine import Engine
from spaninfer_engine.config import BackendName
from tokenizers.processors import TemplateProcessing

BACKENDS: tuple[BackendName, ...] = ("reference", "cpu", "torch")
TEXTS = [prompt(length, seed=length) for length in (7, 1, MAX_LEN, 30, 2, 19, 33)]


@pytest.fixture(scope="module", params=ENCODERS)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EncoderOracle, Path]:
    """An oracle and its checkpoint, whose names have a prefix where there is a head."""
    oracle = EncoderOracle(ENCODERS[request.param])
    return oracle, oracle.save(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[EncoderOracle, Path]:
    oracle = EncoderOracle()
    return oracle, oracle.save(tmp_path_factory.mktemp("bert"))


def engine(folder: Path, backend: BackendName, **options: Any) -> Engine:
    return Engine(folder, backend=backend, dtype="float32", **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_are_those_of_transformers(
    saved: tuple[EncoderOracle, Path], backend: BackendName
) -> None:
    oracle, folder = saved
    write_modules(folder, "mean")

    with engine(folder, backend) as encoder:
        vectors = encoder.embed(TEXTS)

    assert vectors.dtype == np.float32
    assert deviation(vectors, oracle.vectors(TEXTS, "mean")) < TOLERANCE


@pytest.mark.parametrize("group", [32, 64, 128])
def test_vectors_of_13_bits_are_those_of_float32_to_five_digits(
    bert: tuple[EncoderOracle, Path], group: int
) -> None:
    oracle, folder = bert
    write_modules(folder, "mean")
    expected = oracle.vectors(TEXTS, "mean")

    with engine(folder, "cpu", quantize="w13a13", quantize_group=group) as encoder:
        vectors = encoder.embed(TEXTS)

    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert ((vectors * expected).sum(1) / lengths >= 1 - 5e-7).all()
    assert 1e-5 < deviation(vectors, expected) < 5e-3


@pytest.mark.parametrize("poolings", [*((mode,) for mode in MODES), ("cls", "mean")], ids="+".join)
@pytest.mark.parametrize("backend", BACKENDS)
def test_poolings_are_those_of_sentence_transformers(
    bert: tuple[EncoderOracle, Path], backend: BackendName, poolings: tuple[str, ...]
) -> None:
    oracle, folder = bert
    write_modules(folder, *poolings)

    with engine(folder, backend) as encoder:
        vectors = encoder.embed(TEXTS)

    expected = np.concatenate([oracle.vectors(TEXTS, each) for each in poolings], 1)
    assert deviation(vectors, expected) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_dense_modules_follow_the_pooling(tmp_path: Path, backend: BackendName) -> None:
    torch = pytest.importorskip("torch")
    oracle, dense = EncoderOracle(), [torch.nn.Linear(64, 80), torch.nn.Linear(80, 24, bias=False)]
    write_modules(oracle.save(tmp_path), "mean", normalised=True, dense=dense)
    rows = torch.from_numpy(oracle.vectors(TEXTS, "mean"))
    with torch.no_grad():
        for linear in dense:
            rows = torch.tanh(linear(rows))
    expected = torch.nn.functional.normalize(rows).numpy()

    with engine(tmp_path, backend) as encoder:
        assert encoder.width == 24
        assert deviation(encoder.embed(TEXTS), expected) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_with_the_files_of_sentence_transformers_gives_its_last_tokens_state(
    name: str, backend: BackendName, tmp_path: Path
) -> None:
    oracle = EncoderOracle(DECODERS[name])
    write_modules(oracle.save(tmp_path), "last", normalised=True)
    expected = oracle.vectors(TEXTS, "last")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)

    with engine(tmp_path, backend) as encoder:
        assert encoder.tasks == {"embed", "score"}
        assert deviation(encoder.embed(TEXTS), expected) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_laid_out_as_qwen3_embeddings_pools_the_token_behind_prompt_and_text(
    backend: BackendName, tmp_path: Path
) -> None:
    """Names without a prefix or a head, whatever the config says of it; the tokenizer's own token
    ends a text, and queries have an instruction in front."""
    oracle = EncoderOracle(DECODERS["qwen3"])
    library = write_words(oracle.save(tmp_path))
    library.post_processor = TemplateProcessing("$A [SEP]", special_tokens=[("[SEP]", SEP)])
    library.save(str(tmp_path / "tokenizer.json"))
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_modules(tmp_path, "last", normalised=True)
    prompts = {"prompts": {"query": "grapes wine ", "document": ""}, "default_prompt_name": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    query, document = oracle.vectors([[6, 7, 4, SEP], [4, 5, SEP]], "last")

    with engine(tmp_path, backend) as encoder:
        asked = encoder.embed("fox", prompt_name="query")
        bare = encoder.embed("fox crow")
        short = encoder.embed("fox crow", dimensions=24)

    query, document, begun = (
        each / np.linalg.norm(each) for each in (query, document, document[:24])
    )
    assert deviation(asked[0], query) < TOLERANCE
    assert deviation(bare[0], document) < TOLERANCE
    assert deviation(short[0], begun) < TOLERANCE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_have_the_logits_of_transformers(
    name: str, backend: BackendName, tmp_path: Path
) -> None:
    oracle = EncoderOracle(CLASSIFIERS[name])
    oracle.save(tmp_path)
    logits = oracle.label_logits(TEXTS)
    names = tuple(oracle.model.config.id2label.values())

    with engine(tmp_path, backend) as encoder:
        assert encoder.labels == names
        assert (
            deviation(encoder.rows_of([encoder.encode_text(t) for t in TEXTS]), logits) < TOLERANCE
        )
        shown = encoder.classify(TEXTS)

    exact = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(
        shown, exact if len(names) > 1 else 1 / (1 + np.exp(-logits)), atol=1e-4
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cross_encoder_reads_pairs_with_token_types(backend: BackendName, tmp_path: Path) -> None:
    """As its tokenizer puts them together: tokens of the second text have type 1."""
    oracle = EncoderOracle(CLASSIFIERS["bert cross-encoder"])
    write_words(oracle.save(tmp_path))
    pairs = [([4, 5], [6]), ([4, 5], [5, 4, 7, 7])]
    ids = [[CLS, *first, SEP, *second, SEP] for first, second in pairs]
    logits = oracle.label_logits(ids, [len(first) + 2 for first, _ in pairs])
    assert deviation(logits, oracle.label_logits(ids)) > 0.01  # without types it is another number

    with engine(tmp_path, backend) as encoder:
        scores = encoder.score("fox crow", ["grapes", "crow fox wine wine"])

    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits[:, 0])), atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_biases_of_positions_count_in_texts_longer_than_their_table(
    backend: BackendName, tmp_path: Path
) -> None:
    oracle = EncoderOracle(ENCODERS["mpnet"])
    write_modules(oracle.save(tmp_path), "mean")
    texts = [prompt(length, seed=length) for length in (150, 91, 129)]  # the last bucket is from 91

    with engine(tmp_path, backend) as encoder:
        assert encoder.context == 150
        assert deviation(encoder.embed(texts), oracle.vectors(texts, "mean")) < TOLERANCE


WIDE = {
    "three layers of all-mpnet-base-v2": ("MPNet", {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 3,
        "num_attention_heads": 12, "max_position_embeddings": 514,
    }, "mean", (5, 130, 512)),
    "bge-small, whose 12 heads have 32 channels": ("Bert", {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 512,
    }, "cls", (5, 130, 301, 64)),
}  # fmt: skip
"""Shapes of published models: a class and sizes, how it pools, and how long texts are."""


@pytest.fixture(scope="module", params=WIDE)
def wide(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[int]], Any]:
    """A folder, texts, and their vectors: made once for all backends."""
    name, sizes, pooling, lengths = WIDE[request.param]
    folder = tmp_path_factory.mktemp("wide")
    oracle = EncoderOracle(Family(f"{name}Model", f"{name}Config", {**SIZES, **sizes}))
    write_modules(oracle.save(folder), pooling, normalised=pooling == "mean")
    texts = [prompt(length, seed=length) for length in lengths]
    vectors = oracle.vectors(texts, pooling)
    if pooling == "mean":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return folder, texts, vectors


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wide_model_is_as_exact(
    backend: BackendName, wide: tuple[Path, list[list[int]], Any]
) -> None:
    folder, texts, expected = wide

    with engine(folder, backend) as encoder:
        assert deviation(encoder.embed(texts), expected) < TOLERANCE


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


def test_pairs_of_a_model_with_one_token_type_have_that_one(tmp_path: Path) -> None:
    """Whatever the tokenizer says: a second row there is not."""
    family = CLASSIFIERS["xlm-r reranker"]  # whose padding, which has no position, is CLS here
    oracle = EncoderOracle(replace(family, arguments={**family.arguments, "pad_token_id": 0}))
    write_words(oracle.save(tmp_path))
    logits = oracle.label_logits([[CLS, 4, SEP, 5, SEP]])

    with engine(tmp_path, "reference") as encoder:
        scores = encoder.score("fox", ["crow"])

    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits[:, 0])), atol=1e-5)
