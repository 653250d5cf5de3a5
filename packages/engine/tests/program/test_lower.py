"""Programs of a few families, written out: what each node of a spec computes, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from encoders import ENCODERS
from families import FAMILIES
from spaninfer_engine.ops.bound import POOL, Result
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.program.lower import lower
from spaninfer_engine.program.program import Program, variants, without_media
from spaninfer_engine.spec import Decoder, Encoder, find, resolve
from spaninfer_engine.spec.pooling_nodes import PoolKind


def _decoder(name: str) -> Decoder:
    config = FAMILIES[name].config_json()
    return resolve(find(config), config)


def _layer(name: str, index: int) -> list[str]:
    """The operations of one layer of a model, without weights and constants."""
    program = without_media(lower(_decoder(name)))
    return [
        " ".join((*operation.outputs, "=", operation.operator, *operation.inputs))
        for operation in program.operations
        if operation.layer == index
    ]


def test_a_layer_with_norms_before_attention_and_mlp():
    assert _layer("qwen3", 0) == [
        "norm.0 = rms_norm x.0",
        "q.0 = linear norm.0",
        "k.0 = linear norm.0",
        "v.0 = linear norm.0",
        "q.1 = split_heads q.0",
        "k.1 = split_heads k.0",
        "v.1 = split_heads v.0",
        "norm.1 = rms_norm q.1",
        "norm.2 = rms_norm k.1",
        "rotated.0 = rotate norm.1",
        "rotated.1 = rotate norm.2",
        "= append rotated.1 v.1",
        "read.0 = attend rotated.0",
        "read.1 = merge_heads read.0",
        "attention.0 = linear read.1",
        "x.2 = add x.0 attention.0",
        "norm.3 = rms_norm x.2",
        "gate.0 = linear norm.3",
        "up.0 = linear norm.3",
        "inner.0 = gate gate.0 up.0",
        "mlp.0 = linear inner.0",
        "x.3 = add x.2 mlp.0",
    ]


def test_a_parallel_layer_adds_attention_and_mlp_of_one_norm():
    assert _layer("falcon 7b", 0) == [
        "norm.0 = layer_norm x.0",
        "qkv.0 = linear norm.0",
        "q.0 k.0 v.0 = split_groups qkv.0",
        "rotated.0 = rotate q.0",
        "rotated.1 = rotate k.0",
        "= append rotated.1 v.0",
        "read.0 = attend rotated.0",
        "read.1 = merge_heads read.0",
        "attention.0 = linear read.1",
        "up.0 = linear norm.0",
        "inner.0 = activation up.0",
        "mlp.0 = linear inner.0",
        "both.0 = add attention.0 mlp.0",
        "x.2 = add x.0 both.0",
    ]


def test_norms_behind_attention_and_mlp_come_before_the_sum():
    assert _layer("gemma2", 0)[-9:] == [
        "norm.1 = rms_norm attention.0",
        "x.2 = add x.0 norm.1",
        "norm.2 = rms_norm x.2",
        "gate.0 = linear norm.2",
        "up.0 = linear norm.2",
        "inner.0 = gate gate.0 up.0",
        "mlp.0 = linear inner.0",
        "norm.3 = rms_norm mlp.0",
        "x.3 = add x.2 norm.3",
    ]


def test_latent_attention_caches_one_latent_and_moves_both_up_projections_to_the_query():
    assert _layer("deepseek_v3", 0)[1:21] == [
        "low.0 = linear norm.0",
        "norm.1 = rms_norm low.0",
        "y.0 = linear norm.1",
        "q.0 = split_heads y.0",
        "q_nope.0 q_rope.0 = split q.0",
        "q_latent.0 = head_linear q_nope.0",
        "rotated.0 = rotate q_rope.0",
        "q.1 = concat q_latent.0 rotated.0",
        "kv.0 = linear norm.0",
        "latent.0 k_rope.0 = split kv.0",
        "norm.2 = rms_norm latent.0",
        "latent.1 = split_heads norm.2",
        "k_rope.1 = split_heads k_rope.0",
        "rotated.1 = rotate k_rope.1",
        "k.0 = concat latent.1 rotated.1",
        "= append k.0",
        "read.0 = attend q.1",
        "read.1 = head_linear read.0",
        "read.2 = merge_heads read.1",
        "attention.0 = linear read.2",
    ]


def test_sparse_attention_keeps_keys_of_an_indexer_and_reads_what_it_selects():
    layer = _layer("deepseek_v32", 0)
    first = layer.index("= append k.0")

    assert layer[first : first + 14] == [
        "= append k.0",
        "y.1 = linear norm.1",  # from the latent of the queries
        "q.2 = split_heads y.1",
        "k.1 = linear norm.0",
        "norm.3 = layer_norm k.1",
        "k.2 = split_heads norm.3",
        "rotated.2 = rotate q.2",
        "rotated.3 = rotate k.2",
        "= append rotated.3",
        "weights.0 = router norm.0",
        "selected.0 = select_keys rotated.2 weights.0",
        "read.0 = attend_selected q.1 selected.0",
        "read.1 = head_linear read.0",
        "read.2 = merge_heads read.1",
    ]


def test_an_indexer_rotates_by_the_frequencies_of_its_attention_in_a_style_of_its_own():
    program = lower(_decoder("deepseek_v32"))
    first = [each for each in program.operations if each.layer == 0]

    rotations = [each.constants for each in first if each.operator == "rotate"]
    appends = [each.constants for each in first if each.operator == "append"]
    assert [dict(each)["style"] for each in rotations] == ["interleaved"] * 2 + ["half"] * 2
    assert {dict(each)["rope"] for each in rotations} == {0}
    assert [dict(each) for each in appends] == [
        {"group": 0, "layer": 0},
        {"group": 1, "layer": 0},
    ]


def test_layers_without_an_indexer_read_what_the_last_one_selected():
    operations = lower(_decoder("glm_moe_dsa shared")).operations

    read = [(each.layer, each.inputs[1]) for each in operations if each.operator.endswith("lected")]
    selecting = [(each.layer, dict(each.constants)["layer"]) for each in operations
                 if each.operator == "select_keys"]  # fmt: skip
    assert read == [(0, "selected.0"), (1, "selected.0"), (2, "selected.1"), (3, "selected.1")]
    assert selecting == [(0, 0), (2, 1)]  # in the cache group of indexers


def test_a_routed_mlp_chooses_experts_and_adds_the_shared_one():
    assert (
        _layer("qwen2_moe", 0)[-10:]
        == [
            "routing.0 = router norm.1",
            "ids.0 shares.0 = route routing.0",
            "mlp.0 = experts norm.1 ids.0 shares.0",
            "gate.0 = linear norm.1",
            "up.0 = linear norm.1",
            "inner.0 = gate gate.0 up.0",
            "mlp.1 = linear inner.0",
            "gate.1 = linear norm.1",
            "mlp.2 = sigmoid_gate mlp.1 gate.1",
            "mlp.3 = add mlp.0 mlp.2",
            "x.3 = add x.2 mlp.3",
        ][-10:]
    )


def test_windows_caps_and_frequencies_are_constants_of_the_layer():
    program = lower(_decoder("gemma3"))
    attends = [item for item in program.operations if item.operator == "attend"]
    rotations = [item for item in program.operations if item.operator == "rotate"][::2]

    assert [item.scoring().window for item in attends] == [7, None, 7, None]
    assert [item.constant("group") for item in attends] == [0, 1, 0, 1]
    assert [item.constant("layer") for item in attends] == [0, 0, 1, 1]
    assert [program.ropes[item.constant("rope")].frequencies.theta for item in rotations] == [
        1e4, 1e6, 1e4, 1e6,
    ]  # fmt: skip


def test_a_head_scales_and_caps_in_that_order():
    operators = [item.operator for item in lower(_decoder("gemma2")).operations]

    assert operators[-4:] == ["gather_rows", "rms_norm", "linear", "softcap"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_is_made_once_before_it_is_read_and_every_operator_is_in_the_table(name: str):
    program: Program = lower(_decoder(name))
    made: set[str] = set()

    for operation in program.operations:
        assert hasattr(Ops, operation.operator)
        assert made.issuperset(operation.inputs)
        assert made.isdisjoint(operation.outputs)
        made.update(operation.outputs)
    assert program.result in made


def _encoder(*kinds: PoolKind) -> Program:
    config = ENCODERS["with pooler"].config_json()
    model = resolve(find(config), config)
    assert isinstance(model, Encoder)
    return lower(replace(model, pool=replace(model.pool, kinds=kinds or model.pool.kinds)))


def test_an_encoder_adds_types_caches_nothing_and_norms_behind_the_sums():
    operators = [item.operator for item in without_media(_encoder()).operations]

    embedding = ["embed", "learned_positions", "add", "add_types", "layer_norm"]
    heads = ["linear"] * 3 + ["split_heads"] * 3
    attention = ["attend_ragged", "merge_heads", "linear", "add", "layer_norm"]
    mlp = ["linear", "activation", "linear", "add", "layer_norm"]
    assert operators == [*embedding, *3 * (heads + attention + mlp), "pool"]


@pytest.mark.parametrize("kind", ["cls", "last"])
def test_behind_the_last_attention_rows_alone_are_computed_that_become_vectors(kind: PoolKind):
    program = variants(_encoder(kind))[POOL]

    operators = [item.operator for item in program.operations]
    attention = len(operators) - 1 - operators[::-1].index("attend_ragged")
    gathers = ["gather_rows", "gather_rows"]  # what attention made, and the residual stream
    behind = ["merge_heads", "linear", "add", "layer_norm", "linear", "activation", "linear", "add"]
    assert sorted(operators[attention + 1 :]) == sorted([*gathers, *behind, "layer_norm"])
    assert set(operators[attention + 1 : attention + 3]) == {"gather_rows"}
    assert program.result in program.operations[-1].outputs


def test_vectors_of_two_kinds_are_pooled_from_all_rows():
    operators = [item.operator for item in variants(_encoder("cls", "mean"))[POOL].operations]

    assert operators[-1] == "pool"
    assert "gather_rows" not in operators


def test_an_encoder_has_one_program_which_returns_vectors():
    program = _encoder()

    assert program.returns is Result.VECTORS
    assert list(variants(program)) == [POOL]
    assert all(hasattr(Ops, item.operator) for item in program.operations)
