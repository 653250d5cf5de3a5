"""Encoders on backend cuda: their bound programs, without a GPU, and their vectors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoders import (
    DECODERS,
    ENCODERS,
    MAX_LEN,
    MODES,
    ODD_ENCODERS,
    VOCAB,
    WIDE_ENCODERS,
    WIDE_LEN,
    EncoderOracle,
    write_modules,
)
from noise import rms
from numpy.typing import NDArray
from oracle import deviation, prompt
from spaninfer_engine import Engine, EngineConfig
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.ops.bound import POOL, BoundProgram
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from spaninfer_engine.request.texts import Text
from spaninfer_engine.run.embedding import EmbeddingRunner
from spaninfer_engine.spec.nodes import Encoder, ropes
from spaninfer_engine.startup.model import resolve_model
from spaninfer_engine.step.sequences import Sequences

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.encoder import CudaEncoderOps  # noqa: E402

Rows = NDArray[np.float32]

FAMILIES = {
    **{name: (family, MAX_LEN) for name, family in {**ENCODERS, **DECODERS}.items()},
    **{f"wide {name}": (family, WIDE_LEN) for name, family in WIDE_ENCODERS.items()},
    **{f"odd {name}": (family, MAX_LEN) for name, family in ODD_ENCODERS.items()},
}
DTYPES = ("bfloat16", "float16")
# Both round as often; which of the two is nearer to float32 for a few texts is chance.
CHANCE = 1.25


def saved(name: str, folder: Path) -> EncoderOracle:
    """Write a checkpoint whose texts' hidden states are averaged; return the model in it."""
    family, _ = FAMILIES[name]
    oracle = EncoderOracle(family)
    write_modules(oracle.save(folder), "mean")
    return oracle


def bound_to(ops: Any, folder: Path) -> tuple[Encoder, BoundProgram[Any]]:
    """Return the encoder of a checkpoint, and its program."""
    checkpoint = open_checkpoint(folder)
    model = resolve_model(EngineConfig(model=folder), checkpoint)
    assert isinstance(model, Encoder)
    return model, bind(lower(model), ops, checkpoint.reader)[POOL]


@pytest.mark.parametrize(
    ("name", "attention", "mlp", "norm"),
    [
        ("with pooler", "project_attend", "activated_linear", "layer"),
        ("xlm-r", "project_attend", "activated_linear", "layer"),
        ("distilbert", "project_attend", "activated_linear", "layer"),
        ("mpnet", "project_attend", "activated_linear", "layer"),
        ("modernbert", "project_rotate_attend", "gated_linear", "layer"),
        ("gte", "project_rotate_attend", "gated_linear", "layer"),
        ("nomic", "project_rotate_attend", "gated_linears", "layer"),
        ("qwen3", "attend_ragged", "gated_linears", "rms"),
    ],
)
def test_a_layer_is_four_steps(
    name: str, attention: str, mlp: str, norm: str, tmp_path: Path
) -> None:
    """Attention with its projections, projection with sum and norm, MLP, the same again."""
    saved(name, tmp_path)

    model, bound = bound_to(CudaEncoderOps("bfloat16", "cpu"), tmp_path)

    names = Counter(step.name for step in bound.kernels)
    layers = len(model.layers)
    assert (names[attention], names[mlp], names[f"project_add_{norm}_norm"]) == (
        layers,
        layers,
        2 * layers,
    )
    assert not names.keys() & {"add", "split", "gate", "activation"}


def test_the_embeddings_of_bert_are_one_step_and_a_sum_that_is_only_normed_takes_no_slot(
    tmp_path: Path,
) -> None:
    saved("with pooler", tmp_path)

    model, bound = bound_to(CudaEncoderOps("bfloat16", "cpu"), tmp_path)

    assert [step.name for step in bound.kernels][:2] == ["embeddings", "project_attend"]
    assert len(bound.kernels) == 2 + 4 * len(model.layers)
    assert bound.num_slots == 2


# ---- on a GPU ------------------------------------------------------------------------------------


def runner_on(folder: Path, dtype: Any) -> EmbeddingRunner:
    """Return what computes the texts of a checkpoint; kernels are compiled when they come."""
    from spaninfer_engine.backends.cuda.text_device import CudaTextDevice, TextProgram

    ops = CudaEncoderOps(dtype)
    model, bound = bound_to(ops, folder)
    program = TextProgram(bound.run, ops, ropes(model), model.max_len)
    sequences = Sequences(0, max_len=model.max_len, span_len=32, num_rows=4)
    return EmbeddingRunner(CudaTextDevice(program, sequences), sequences, model.pool)


def vectors_of(runner: EmbeddingRunner, texts: Any) -> Rows:
    """Return the vectors of texts, computed in one step."""
    launched = runner.launch([Text(np.array(text)) for text in texts])
    launched.wait()
    return launched.vectors()


def texts_up_to(most: int) -> list[list[int]]:
    """Return texts of very uneven lengths, one token and `most` of them included."""
    lengths = (7, 1, most, most // 2 - 2, 2, 19, 33, most // 3, most - 1, 5)
    return [prompt(length, seed=number) for number, length in enumerate(lengths)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_are_no_further_from_float32_than_those_of_transformers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    oracle, texts = saved(name, tmp_path), texts_up_to(FAMILIES[name][1])
    exact = oracle.vectors(texts, "mean")

    with runner_on(tmp_path, dtype) as runner:
        ours = vectors_of(runner, texts)

    theirs = oracle.vectors_on_gpu(texts, "mean", dtype)
    assert rms(ours - exact) <= CHANCE * rms(theirs - exact)


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [*((kind,) for kind in MODES), ("cls", "mean")], ids="+".join)
def test_texts_are_pooled_as_they_are_alone_in_float32(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    oracle, texts = saved("wide bert", tmp_path), texts_up_to(WIDE_LEN)
    write_modules(tmp_path, *kinds)
    exact = np.concatenate([oracle.vectors(texts, kind) for kind in kinds], 1)

    with runner_on(tmp_path, "bfloat16") as runner:
        ours = vectors_of(runner, texts)

    theirs = np.concatenate([oracle.vectors_on_gpu(texts, kind, "bfloat16") for kind in kinds], 1)
    assert rms(ours - exact) <= CHANCE * rms(theirs - exact)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "most"),
    [
        *(("wide bert", 2**-7), ("wide modernbert", 2**-7), ("wide mpnet", 2**-7)),
        # cuBLAS multiplies odd sizes, by kernels chosen by the number of rows: 0.03 seen on
        # an H200, where each of the two is 0.013 (rms) from float32
        ("odd mpnet", 2**-4),
    ],
)
def test_a_text_has_one_vector_whatever_is_computed_beside_it(
    name: str, most: float, tmp_path: Path
) -> None:
    saved(name, tmp_path)
    texts = texts_up_to(FAMILIES[name][1])

    with runner_on(tmp_path, "bfloat16") as runner:
        together = vectors_of(runner, texts)
        alone = np.concatenate([vectors_of(runner, [text]) for text in texts])

    assert deviation(together, alone) < most


@pytest.mark.gpu
def test_a_step_of_thousands_of_texts_gives_each_its_own_vector(tmp_path: Path) -> None:
    saved("wide bert", tmp_path)
    rng = np.random.default_rng(0)
    known = [rng.integers(3, VOCAB, length).tolist() for length in range(1, 25)]
    numbers = rng.integers(len(known), size=3000)

    with runner_on(tmp_path, "bfloat16") as runner:
        expected = vectors_of(runner, known)
        vectors = vectors_of(runner, [known[number] for number in numbers])

    assert deviation(vectors, expected[numbers]) < 2**-7


@pytest.mark.gpu
def test_the_second_text_of_a_pair_has_its_own_type(tmp_path: Path) -> None:
    oracle = saved("with pooler", tmp_path)
    pair, first = prompt(20), 12
    types = (torch.arange(20) >= first).long()[None]
    with torch.no_grad():
        hidden = oracle.model(torch.tensor([pair]), token_type_ids=types).last_hidden_state[0]
    exact = hidden.mean(0).numpy()

    with runner_on(tmp_path, "bfloat16") as runner:
        launched = runner.launch([Text(np.array(pair), first), Text(np.array(pair))])
        launched.wait()
        typed, plain = launched.vectors()

    assert deviation(typed, exact) < 0.1
    assert rms(typed - exact) < rms(plain - exact) / 3


@pytest.mark.gpu
def test_steps_are_launched_before_the_one_in_front_is_read(tmp_path: Path) -> None:
    saved("wide bert", tmp_path)
    texts = texts_up_to(WIDE_LEN)

    with runner_on(tmp_path, "bfloat16") as runner:
        expected = [vectors_of(runner, texts), vectors_of(runner, texts[:3])]
        steps = [runner.launch([Text(np.array(text)) for text in some])
                 for some in (texts, texts[:3])]  # fmt: skip
        for step in steps:
            step.wait()

    for step, rows in zip(steps, expected, strict=True):
        np.testing.assert_array_equal(step.vectors(), rows)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["wide bert", "modernbert", "mpnet"])
def test_an_engine_compiles_at_its_start_what_texts_of_any_length_need(
    name: str, tmp_path: Path
) -> None:
    from spaninfer_kernel_launch import cached_only

    oracle = saved(name, tmp_path)
    texts = texts_up_to(FAMILIES[name][1])

    with Engine(tmp_path, device="cuda", dtype="bfloat16") as engine:
        assert engine.resolved.backend == "cuda"
        with cached_only():
            one = engine.embed([texts[0]])
            vectors = engine.embed(texts * 40)

    assert deviation(one, vectors[:1]) < 2**-7
    exact = oracle.vectors(texts, "mean")
    assert rms(vectors[: len(texts)] - exact) < 0.05 * exact.std()


@pytest.mark.gpu
def test_a_step_that_lacks_memory_fails_alone(tmp_path: Path) -> None:
    from spaninfer_engine import NoMemory

    saved("wide bert", tmp_path)
    text = prompt(WIDE_LEN)

    with runner_on(tmp_path, "bfloat16") as runner:
        expected = vectors_of(runner, [text])
        torch.cuda.empty_cache()
        held, size = [], torch.cuda.mem_get_info()[0] // 2
        while size > 1 << 20:  # down to what the largest arrays of a step need
            try:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
        with pytest.raises(NoMemory):
            vectors_of(runner, [text] * 64)
        held.clear()
        torch.cuda.empty_cache()

        assert (vectors_of(runner, [text]) == expected).all()
