import pytest
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.decide import (
    Memory,
    checkpoint_dtype,
    decide_budget,
    decide_compute,
    resolve,
    served_name,
)
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.machine import Machine
from spaninfer_engine.spec.nodes import CacheGroup, Decoder, Embedding, Head, Linear, Weight

BARE = Machine(has_torch=False, has_cuda=False)
WITH_TORCH = Machine(has_torch=True, has_cuda=False)
WITH_GPU = Machine(has_torch=True, has_cuda=True)
GIB = 1 << 30


def asked(**options):
    return EngineConfig(model="m", **options)


def decoder(max_len=1024):
    """A model whose tokens take 2 layers x 1 head x (8 + 8) channels."""
    table = Weight("embedding", (50, 8))
    return Decoder(
        "m", 50, 8, max_len, Embedding(table), (), None, Head(Linear(table), tied=True),
        (CacheGroup(0, (0, 1), 1, 8, 8),),
    )  # fmt: skip


def decided(config=None, memory=GIB, **model):
    config = config or asked()
    compute = decide_compute(config, "float32", BARE)
    return resolve(config, "name", decoder(**model), compute, Memory(memory, "for the test"))


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        (BARE, {}, ("cpu", "cpu", "float32")),
        (WITH_TORCH, {}, ("cpu", "cpu", "float32")),
        (WITH_TORCH, {"dtype": "float16"}, ("torch", "cpu", "float16")),
        (WITH_TORCH, {"backend": "torch"}, ("torch", "cpu", "bfloat16")),
        (WITH_GPU, {}, ("torch", "cuda", "bfloat16")),
        (WITH_GPU, {"device": "cuda:1"}, ("torch", "cuda:1", "bfloat16")),
        (WITH_GPU, {"device": "cpu"}, ("cpu", "cpu", "float32")),
        (WITH_GPU, {"backend": "cpu"}, ("cpu", "cpu", "float32")),
        (BARE, {"backend": "reference"}, ("reference", "cpu", "float32")),
    ],
)
def test_what_computes_follows_from_what_was_asked_and_what_is_there(machine, options, expected):
    compute = decide_compute(asked(**options), "bfloat16", machine)

    assert (compute.backend, compute.device, compute.dtype) == expected
    assert all(decision.why for decision in compute.decisions)


@pytest.mark.parametrize(
    ("machine", "options", "way_out"),
    [
        (BARE, {"backend": "torch"}, r"pip install 'spaninfer\[torch\]'"),
        (BARE, {"dtype": "bfloat16"}, "or use float32"),
        (BARE, {"device": "cuda"}, "leave the device to us"),
        (WITH_TORCH, {"device": "cuda"}, "no CUDA device can be used"),
        (WITH_GPU, {"device": "cuda", "backend": "cpu"}, "device cuda needs torch"),
        (WITH_TORCH, {"backend": "cpu", "dtype": "float16"}, "choose --backend torch"),
        (BARE, {"backend": "onnx"}, "allowed are cpu, torch, reference"),
        (BARE, {"dtype": "int8"}, "allowed are float32, bfloat16, float16"),
        (BARE, {"max_running": 0}, "max_running is 0; allowed is 1 or more"),
        (BARE, {"span_len": 4096}, "span_len is 4096; allowed is 1 to 1024"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(machine, options, way_out):
    with pytest.raises(ConfigError, match=way_out):
        decide_compute(asked(**options), "float32", machine)


def test_a_dtype_that_torch_does_not_compute_in_becomes_float32():
    compute = decide_compute(asked(backend="torch"), "float8_e4m3fn", WITH_TORCH)

    assert compute.dtype == "float32"


def test_the_host_gives_a_share_of_its_memory_up_to_a_limit():
    compute = decide_compute(asked(), "float32", BARE)

    assert decide_budget(asked(), compute, 2 * GIB, 0.5).budget == GIB
    assert decide_budget(asked(), compute, 100 * GIB, 0.5).budget == 4 * GIB
    assert decide_budget(asked(memory=9 * GIB), compute, GIB, 0.5).budget == 9 * GIB


def test_a_gpu_gives_its_share_without_a_limit():
    compute = decide_compute(asked(), "float32", WITH_GPU)

    assert decide_budget(asked(), compute, 100 * GIB, 0.9).budget == 90 * GIB


def test_spans_are_for_as_many_whole_requests_as_may_run_if_memory_allows():
    resolved = decided(asked(max_running=10, span_len=16))

    assert resolved.num_spans == (10 * 1024 // 16,)
    assert resolved.max_len == 1024


def test_a_context_that_does_not_fit_is_shortened_unasked_and_refused_when_asked():
    bytes_per_token = 2 * 16 * 4
    resolved = decided(asked(span_len=16), memory=100 * bytes_per_token)

    assert resolved.max_len == 96  # six whole spans
    assert any("what fits" in decision.why for decision in resolved.decisions)
    with pytest.raises(ConfigError, match="lower max_len, or raise memory"):
        decided(asked(span_len=16, max_len=1024), memory=100 * bytes_per_token)


def test_a_context_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match="made for 1024 positions"):
        decided(asked(max_len=2000))


def test_a_step_holds_a_token_of_every_running_request():
    assert decided(asked(max_running=2000)).step_tokens == 2000
    assert decided(asked(max_running=4, step_tokens=64)).step_tokens == 64


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_the_dtype_of_a_config_has_two_spellings(config, expected):
    assert checkpoint_dtype(config) == expected


def test_clients_find_the_model_under_the_name_asked_for():
    assert served_name(asked(), "folder") == "folder"
    assert served_name(asked(served_name="mine"), "folder") == "mine"
