"""Trees of encoders against what transformers builds and saves."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from encoders import ENCODERS
from families import Family
from spaninfer_engine.errors import CheckpointError, SpecError
from spaninfer_engine.spec import Encoder, check, find, parameter_count, resolve, weights
from spaninfer_engine.spec.attention_nodes import RaggedAttention, RelativeBias
from spaninfer_engine.spec.describe import Finding, check_file
from spaninfer_engine.spec.pooling_nodes import Pool
from spaninfer_engine.spec.weight_nodes import Weight

pytestmark = pytest.mark.filterwarnings("error::spaninfer_engine.spec.UnreadConfigKeys")

BERTS = [family for family in ENCODERS.values() if family.config == "BertConfig"]
PRETRAINING = Family("BertForPreTraining", "BertConfig", ENCODERS["with pooler"].arguments)


def encoder(family: Family, shapes: Any = None, **more: Any) -> Encoder:
    config = {**family.config_json(), "architectures": ["BertModel"], **more}
    resolved = resolve(find(config), config, shapes)
    assert isinstance(resolved, Encoder)
    return resolved


@pytest.mark.parametrize("family", [*BERTS, PRETRAINING], ids=lambda each: each.model)
def test_names_and_shapes_are_those_of_the_model_with_a_prefix_and_without(family: Family) -> None:
    shapes = family.shapes()

    model = encoder(family, shapes)

    check(model, shapes)
    heads = ("pooler.", "bert.pooler.", "cls.")
    assert {weight.name for weight in weights(model)} == {
        name for name in shapes if not name.startswith(heads)
    }


def test_a_tensor_that_no_encoder_has_is_no_part_of_it() -> None:
    shapes = ENCODERS["with pooler"].shapes()

    with pytest.raises(CheckpointError, match=r"classifier.weight .* is not part of the model"):
        check(encoder(ENCODERS["with pooler"], shapes), {**shapes, "classifier.weight": (2, 64)})


def test_every_layer_sees_its_whole_text_and_nothing_is_cached() -> None:
    model = encoder(ENCODERS["with pooler"])

    assert {type(layer.attention) for layer in model.layers} == {RaggedAttention}
    assert model.groups == ()
    assert model.pool == Pool(("mean",), normalise=False)


@pytest.mark.parametrize(
    "said",
    [
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"add_cross_attention": True},
    ],
    ids=str,
)
def test_a_config_that_means_another_model_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(said))):
        encoder(ENCODERS["with pooler"], **said)


@pytest.mark.parametrize("name", ["mpnet", "mpnet mlm"])
def test_layers_of_mpnet_share_a_table_that_is_counted_once(name: str) -> None:
    family = ENCODERS[name]
    config, shapes = family.config_json(), family.shapes()

    model = resolve(find(config), config, shapes)

    check(model, shapes)
    prefix = "mpnet." if name == "mpnet mlm" else ""
    table = Weight(f"{prefix}encoder.relative_attention_bias.weight", (32, 4), 1)
    assert {layer.attention.positions for layer in model.layers} == {RelativeBias(table, 128)}
    heads = ("pooler.", "mpnet.pooler.", "lm_head.")
    used = (prod(shape) for name, shape in shapes.items() if not name.startswith(heads))
    assert parameter_count(model) == sum(used)


@pytest.mark.parametrize(
    "said",
    [64, 0, -1, 31, 2**62, 10**400, 0.5, 1e308, "32", True, [32], {}],
    ids=lambda v: str(v)[:9],
)
def test_another_number_of_buckets_than_mpnet_has_is_refused_by_name(said: Any) -> None:
    config = {**ENCODERS["mpnet"].config_json(), "relative_attention_num_buckets": said}

    with pytest.raises(SpecError, match=r"relative_attention_num_buckets: .* implemented is 32"):
        resolve(find(config), config)


def test_a_spec_that_is_checked_asks_for_every_key_of_an_encoder() -> None:
    config = ENCODERS["with pooler"].config_json()

    assert check_file("bert", config, ENCODERS["with pooler"].shapes()) == ()


@pytest.mark.parametrize(
    ("inherits", "said", "told"),
    [
        ("bert", "causal = true", "a decoder is causal, and an encoder is not"),
        ("llama", "causal = false", "a decoder is causal, and an encoder is not"),
        ("bert", "logn = 4", "encoders are built with None alone"),
        ("bert", 'pos = "alibi"', "encoders are built with 'none' and 'rope' and 'relative' alone"),
        ("bert", 'pos = "relative"', "relative needs a table: [weights] rel_bias is its name"),
        ("mpnet", "rel_buckets = 30", "30 buckets are no multiple of 4"),
        ("mpnet", "rel_distance = 8", "the first 8 buckets reach as far; give a longer distance"),
        ("llama", 'pos = "relative"', "relative is not built for decoders"),
    ],
)
def test_attention_that_is_not_built_for_the_kind_is_refused(
    tmp_path: Any, inherits: str, said: str, told: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'inherits = "{inherits}"\n[attn]\n{said}\n')
    config = {**ENCODERS["with pooler"].config_json(), "rms_norm_eps": 1e-5, "is_decoder": None}

    findings = check_file(path, config)

    assert [finding.level for finding in findings] == ["error"], findings
    assert isinstance(findings[0], Finding)
    assert told in findings[0].text
