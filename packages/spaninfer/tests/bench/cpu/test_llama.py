"""What is set beside the engine: a file of the same sizes, and what happens without llama.cpp."""

import json
import sys

import gguf
import numpy as np
import pytest
from spaninfer.bench.cpu.engine import OURS, THEIRS, measure_engine
from spaninfer.bench.cpu.gguf_file import matrices, write_gguf
from spaninfer.bench.cpu.llama import MISSING, llama_library
from spaninfer.bench.cpu.workloads import WORKLOADS
from spaninfer.bench.shapes import SHAPES
from spaninfer_kernels_cpu import Format

TINY = SHAPES["qwen2.5-0.5b"] | {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 96,
    "vocab_size": 300,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
INT8 = {Format("int8", 32): "Q8_0"}


@pytest.fixture
def folder(tmp_path):
    """A model that is a config.json."""
    home = tmp_path / "tiny"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(TINY))
    return home


def test_the_shape_has_the_parameters_of_the_published_model():
    sizes = [outputs * channels for _, (outputs, channels) in matrices(SHAPES["qwen2.5-0.5b"])]

    assert 493e6 < sum(sizes) < 494e6


@pytest.mark.parametrize(
    ("format", "row_bytes"), [("BF16", 128), ("Q8_0", 2 * 34), ("Q4_0", 2 * 18)]
)
def test_every_matrix_of_the_file_is_in_the_format_and_has_its_shape(tmp_path, format, row_bytes):
    path = tmp_path / "model.gguf"

    write_gguf(path, TINY, format)

    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, (outputs, channels) in matrices(TINY):
        assert found[name].tensor_type.name == format
        assert tuple(found[name].shape) == (channels, outputs)
    embedding = found["token_embd.weight"]
    assert embedding.n_bytes == 300 * row_bytes
    numbers = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    assert np.std(numbers) == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.usefixtures("short_texts")
def test_without_llama_cpp_one_note_says_so_and_the_engine_is_timed_alone(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    notes = []

    records = list(measure_engine(folder, INT8, {"decode64_bs8", "prefill256"}, 2, notes.append))

    assert notes.count(MISSING) == 1
    assert [(record["workload"], record["format"]) for record in records] == [
        ("decode64_bs8", "int8 g32"),
        ("prefill256", "int8 g32"),
    ]
    assert {record["program"] for record in records} == {OURS}
    assert {record["model"] for record in records} == {"tiny"}
    assert all(len(record["runs"]) == 2 for record in records)
    assert all(0 < record["kl"] < 1e-2 and record["kl_model"] == "demo" for record in records)


@pytest.mark.skipif(llama_library() is None, reason="llama-cpp-python is not installed")
@pytest.mark.usefixtures("short_texts")
def test_with_llama_cpp_every_workload_has_both_rates_their_ratio_and_both_divergences(folder):
    names = {workload.name for workload in WORKLOADS}

    records = list(measure_engine(folder, INT8, names, 1, lambda _: None))

    programs = [OURS, THEIRS, f"{OURS} / {THEIRS}"]
    assert [record["program"] for record in records] == programs * 3
    assert [record["unit"] for record in records] == ["tok/s", "tok/s", "times"] * 3
    assert all(record["peer_instructions"] for record in records)
    for ours, theirs, ratio in zip(*[iter(records)] * 3, strict=True):
        assert (ratio["kl"], ratio["kl_peer"]) == (ours["kl"], theirs["kl"])
