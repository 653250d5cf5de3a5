import json

import numpy as np
import pytest
from spaninfer_engine import Engine, EngineConfig, SamplingParams
from spaninfer_engine.errors import CheckpointError, ConfigError, InvalidPrompt
from spaninfer_engine.load.dummy import DummyReader
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_engine.startup.compute import decide_compute
from spaninfer_engine.startup.hardware import this_machine

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 500,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
MOE = {
    **CONFIG,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)


@pytest.fixture
def folder(tmp_path):
    """A folder that holds a config.json and nothing else."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_matrices_keep_the_size_of_what_they_multiply_and_norms_lie_around_one():
    weights = [Weight("up.weight", (300, 400)), Weight("norm.weight", (900,)), Weight("bias", (7,))]
    reader = DummyReader(weights, seed=0)

    matrix, norm = (np.asarray(reader.read(name)) for name in ("up.weight", "norm.weight"))

    assert matrix.std() == pytest.approx(400**-0.5, rel=0.01)
    assert abs(matrix.mean()) < 0.001
    assert norm.mean() == pytest.approx(1.0, abs=0.01)
    assert reader.read("bias").mean == 0.0


def test_the_noise_of_a_name_depends_on_the_seed_alone():
    weights = [Weight("a", (8, 8)), Weight("b", (8, 8))]

    one, again, other = (DummyReader(weights, seed) for seed in (1, 1, 2))

    assert np.array_equal(one.read("a"), again.read("a"))
    assert not np.array_equal(one.read("a"), other.read("a"))
    assert not np.array_equal(one.read("a"), one.read("b"))


def test_a_name_that_the_model_does_not_have_is_refused():
    with pytest.raises(CheckpointError, match="'c'"):
        DummyReader([Weight("a", (1,))], seed=0).read("c")


@pytest.mark.parametrize("config", [CONFIG, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("backend", ["torch", "cpu", "reference"])
def test_a_config_alone_is_a_model_of_ids(folder, backend, config):
    (folder / "config.json").write_text(json.dumps(config))

    with Engine(folder, weights="dummy", backend=backend) as engine:
        first, second = engine.generate([[5, 6, 7], [7, 6, 5]], GREEDY)

    assert (first.text, len(first.token_ids)) == ("", 12)
    assert first.token_ids != second.token_ids
    for drawn in first.logprobs:  # activations in range: no certainty, no NaN
        assert -6.0 < drawn.logprob < -0.1  # evenly among 500: -6.2


def test_the_start_up_table_says_that_answers_mean_nothing(folder):
    with Engine(folder, weights="dummy", backend="reference") as engine:
        said = {decision.what: decision for decision in engine.resolved.decisions}

    assert said["weights"].value == "dummy"
    assert "mean nothing" in said["weights"].why


def test_a_text_is_refused_where_there_is_no_tokenizer(folder):
    with (
        Engine(folder, weights="dummy", backend="reference") as engine,
        pytest.raises(InvalidPrompt, match="token ids"),
    ):
        engine.generate("Once", GREEDY)


def test_a_folder_without_weights_is_refused_unless_they_are_asked_for_as_dummies(folder):
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        Engine(folder, backend="reference")


def test_a_source_of_weights_that_there_is_not_is_refused_with_those_there_are():
    asked = EngineConfig(model="m", weights="random")

    with pytest.raises(ConfigError, match="allowed are checkpoint, dummy"):
        decide_compute(asked, "bfloat16", this_machine())
