"""Profiles of an engine's steps: their contents, and their files."""

import gzip
import json

import pytest
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import UnsupportedTask
from spaninfer_engine.request.request import SamplingParams

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2, "vocab_size": 128,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "eos_token_id": 1,
}  # fmt: skip
TEN = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture
def opened(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))

    def open_engine(backend, device="cpu"):
        return Engine(folder, weights="dummy", backend=backend, device=device, memory=1 << 22)

    return open_engine


def profile(engine, folder):
    """Return the file of a profile of ten tokens."""
    engine.generate([3, 4, 5], TEN)  # whatever is only done once
    profiler = engine.profiler()
    profiler.start()
    engine.generate([6, 7, 8], TEN)
    path = profiler.stop(folder, "one")
    assert path.parent == folder
    assert path.name.startswith("one.")
    return path


def test_backend_cpu_says_how_long_each_operator_of_a_step_takes(opened, tmp_path):
    with opened("cpu") as engine:
        path = profile(engine, tmp_path)
        after = engine.generate([6, 7, 8], TEN)

    found = json.loads(path.read_text())
    assert len(after.token_ids) == 10
    assert any("gemm" in each["operator"] for each in found)
    for each in found:
        assert 8 <= each["steps"] <= 10
        assert each["us_per_step"] >= 0
        assert 0 <= each["busy"] <= 1.01
    assert sum(each["bytes_of_weights"] for each in found) > 0


def test_backend_torch_writes_a_trace_of_all_threads(opened, tmp_path):
    pytest.importorskip("torch")
    with opened("torch") as engine:
        path = profile(engine, tmp_path)

    with gzip.open(path, "rt") as trace:
        events = json.load(trace)["traceEvents"]
    names = [event.get("name") for event in events if event.get("cat") == "cpu_op"]
    assert sum("mm" in name or "linear" in name for name in names) >= 10  # of the engine's thread


@pytest.mark.gpu
def test_backend_cuda_writes_a_trace_with_every_kernel(opened, tmp_path):
    with opened("cuda", "cuda") as engine:
        path = profile(engine, tmp_path)

    with gzip.open(path, "rt") as trace:
        events = json.load(trace)["traceEvents"]
    kernels = [event["name"] for event in events if event.get("cat") == "kernel"]
    assert len(kernels) >= 10  # a step has some, of graphs as well


def test_a_backend_without_a_profiler_says_which_have_one(opened):
    with (
        opened("reference") as engine,
        pytest.raises(UnsupportedTask, match="choose --backend cpu, torch or cuda"),
    ):
        engine.profiler()
