"""Engine and llama.cpp on one GGUF file."""

import json
from importlib.util import find_spec

import pytest
from spaninfer.bench.cpu import same_file
from spaninfer.bench.cpu.limits import Limits
from spaninfer.bench.cpu.same_file import Asked, measure_files
from spaninfer.bench.cpu.sides import LLAMA
from spaninfer.bench.shapes import SHAPES

LIMITS = Limits(read=(40.0,), peaks={"int8": (500.0,), "bfloat16": (200.0,)})
HIDDEN, INNER, VOCAB = 256, 512, 512


@pytest.fixture
def folder(tmp_path):
    """A small Qwen3 whose rows are whole blocks of 256 channels."""
    home = tmp_path / "small"
    home.mkdir()
    sizes = {"hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCAB}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    sizes |= {"head_dim": 64, "bos_token_id": 1, "eos_token_id": 0}
    (home / "config.json").write_text(json.dumps(SHAPES[same_file.MODEL] | sizes))
    return home


@pytest.fixture(autouse=True)
def whole_cores(monkeypatch):
    """The cores are always whole."""
    monkeypatch.setattr(same_file.Cores, "are_whole", lambda _: True)


@pytest.mark.parametrize(("type", "layer_bits"), [("Q4_K", 4.5), ("Q8_0", 8.5)])
def test_a_rate_stands_beside_what_bounds_it(folder, type, layer_bits):
    notes = []
    asked = Asked({"decode64_bs1"}, 1, LIMITS, peers=())

    (record,) = measure_files(folder, {type}, asked, notes.append)

    assert (record["benchmark"], record["model"], record["format"]) == ("gguf", "small", type)
    weights = VOCAB * HIDDEN + 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER
    per_second = record["median"] * weights
    assert record["gbps"] * 1e9 == pytest.approx(per_second * layer_bits / 8, rel=0.1, abs=1e7)
    assert record["gops"] * 1e9 == pytest.approx(2 * per_second, abs=1e7)
    assert notes


def test_a_step_is_timed_by_operator(folder):
    asked = Asked({"decode64_bs1"}, 1, LIMITS, peers=(), operators=True)

    _, *records = measure_files(folder, {"Q8_0"}, asked, lambda _: None)

    found = {record["operator"]: record for record in records}
    assert {record["benchmark"] for record in records} == {"operator"}
    assert {record["format"] for record in records} == {"Q8_0"}
    assert found["attend_call.attend"]["calls"] == 1  # a layer
    assert found[f"gemm of {VOCAB} outputs, {VOCAB * HIDDEN * 34 / 32e6:.3g} MB"]["calls"] == 1
    assert found["outside of scripts"]["busy"] == 0


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
def test_beside_llama_cpp_every_setting_has_a_ratio(folder):
    asked = Asked({"prefill256"}, 1, LIMITS, peers=(LLAMA,))

    records = list(measure_files(folder, {"Q6_K"}, asked, lambda _: None))

    programs = [record["program"] for record in records]
    assert programs == ["spaninfer", "llama.cpp", "spaninfer / llama.cpp"]
    ours, theirs, ratio = (record["median"] for record in records)
    assert ratio == pytest.approx(ours / theirs, rel=1e-3)
