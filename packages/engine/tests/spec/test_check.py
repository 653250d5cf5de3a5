from __future__ import annotations

import pytest
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.spec import Decoder, check, load, resolve, weights
from spaninfer_engine.spec.check import SHOWN, differences

CONFIG = {
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


@pytest.fixture
def decoder() -> Decoder:
    return resolve(load("llama"), CONFIG)


@pytest.fixture
def shapes(decoder: Decoder) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights(decoder)}


def test_the_right_checkpoint_passes(decoder: Decoder, shapes: dict[str, tuple[int, ...]]) -> None:
    check(decoder, shapes)


def test_tables_that_anyone_can_recompute_may_be_stored(
    decoder: Decoder, shapes: dict[str, tuple[int, ...]]
) -> None:
    shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = (8,)

    check(decoder, shapes)


def test_missing_surplus_and_wrong_shapes_are_told_at_once(
    decoder: Decoder, shapes: dict[str, tuple[int, ...]]
) -> None:
    del shapes["model.norm.weight"]
    shapes["model.layers.1.self_attn.q_proj.bias"] = (64,)
    shapes["lm_head.weight"] = (128, 64)

    with pytest.raises(CheckpointError) as caught:
        check(decoder, shapes)

    assert str(caught.value) == (
        "the checkpoint is not a llama of this config, 3 problems:"
        "\n  model.norm.weight [64] is missing"
        "\n  lm_head.weight is [128, 64], expected [100, 64]"
        "\n  model.layers.1.self_attn.q_proj.bias [64] is not part of the model"
    )


def test_of_many_problems_the_first_are_spelled_out(decoder: Decoder) -> None:
    total = len(list(differences(decoder, {})))

    with pytest.raises(CheckpointError, match=f"{total} problems") as caught:
        check(decoder, {})

    assert str(caught.value).count("is missing") == SHOWN
    assert str(caught.value).endswith(f"and {total - SHOWN} more")
