"""Bound programs of the CUDA backend; binding needs no GPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cases import SEED
from families import FAMILIES
from noise import ROUTED
from oracle import Oracle
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.bound import TEXT, Programs
from spaninfer_engine.program.bind import bind
from spaninfer_engine.program.lower import lower
from stepping import Model, make_ops
from wide import WIDE

APPENDS = {"project_rotate_append", "project_norm_rotate_append"}


OTHERS = {  # to selected keys, over states, within chunks
    *("deepseek_v32", "glm_moe_dsa", "qwen3_next", "qwen3_5", "qwen3_5_moe", "llama4"),
}


def _bound(name: str, folder: Path, kv_dtype: str | None = None) -> Programs[object]:
    family = {**FAMILIES, **{f"wide {key}": value for key, value in WIDE.items()}}[name]
    model = Model(Oracle(family, SEED).save(folder))
    ops = make_ops("cuda bfloat16", model.decoder.groups, device="cpu", kv_dtype=kv_dtype)
    return bind(lower(model.decoder), ops, model.checkpoint.reader)


def _names(bound: Programs[object]) -> Counter[str]:
    return Counter(step.name for step in bound[TEXT].kernels)


@pytest.mark.parametrize("name", [f"wide {name}" for name in WIDE if name not in OTHERS])
def test_attention_of_wide_models_is_computed_by_kernels(name: str, tmp_path: Path) -> None:
    names = _names(_bound(name, tmp_path))

    appends = sum(count for step, count in names.items() if step.endswith("append"))
    assert names["span_attention"] == appends
    assert appends + names["latent_attention"] > 0
    assert not names.keys() & {"attend", "plain_attention"}


@pytest.mark.parametrize("name", ["wide llama3", "wide qwen3", "wide mistral", "wide phi3"])
def test_a_layer_is_five_steps(name: str, tmp_path: Path) -> None:
    """Projections to spans, attention, projection with sum and norm, MLP, the same again."""
    names = _names(_bound(name, tmp_path))

    layers = names["span_attention"]
    (append,) = names.keys() & APPENDS
    (last,) = names.keys() & {f"{name}_attend" for name in APPENDS}
    assert names == Counter(
        {
            "embed": 1,
            "rms_norm": 1,  # of the embeddings
            append: layers,
            "span_attention": layers,
            last: 1,  # the last layer's, for the wanted rows
            "project_add_rms_norm": 2 * layers + 2,  # the last one's norm is that of the head
            "gated_linear" if name == "wide phi3" else "gated_linears": layers + 1,
            "gather_rows": 1,  # of the residual
            "merge_heads": 1,  # of the rows taken
            "linear": 1,  # the logits
        }
    )


@pytest.mark.parametrize("name", ["qwen3_next", "wide qwen3_next", "qwen3_5"])
def test_linear_attention_is_two_steps_in_every_layer(name: str, tmp_path: Path) -> None:
    """In a last layer of that kind, too, whose norm follows behind the rows that are taken."""
    names = _names(_bound(name, tmp_path))

    assert names["linear_attention"] == names["gated_norm"] > 0
    assert not names.keys() & {"convolve", "delta_gates", "delta_rule"}


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("qwen3", "project_norm_rotate_append"),
        ("gemma3", "project_norm_rotate_append"),
        ("phi3", "project_rotate_append"),
        ("phi3", "gated_linear"),
        ("falcon 40b", "rotate_append"),  # its projections are grouped by key head
        ("falcon 40b", "add_layer_norm"),
        ("bloom", "project_add_layer_norm"),
        ("gemma2", "add_rms_norm"),  # a norm lies between projection and sum
        ("mixtral", "experts_add_rms_norm"),
        ("deepseek_v3", "experts_add_rms_norm"),  # with its shared expert
        ("falcon rw", "plain_attention"),  # its ALiBi is rounded
        ("gemma", "plain_attention"),  # heads of 24 channels
        ("deepseek_v32", "rotate_append_keys"),
        ("deepseek_v32", "sparse_selection"),
        ("glm_moe_dsa shared", "sparse_attention"),
    ],
)
def test_the_listing_says_by_what_a_step_is_computed(name: str, claim: str, tmp_path: Path) -> None:
    assert f"  {claim}:\n" in str(_bound(name, tmp_path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gemma", True), ("deepseek_v32", True), ("wide deepseek_v32", True), ("wide llama3", False)],
)
def test_prompts_are_captured_only_where_no_step_goes_from_one_to_the_next(
    name: str, expected: bool, tmp_path: Path
) -> None:
    from spaninfer_engine.backends.cuda.start import BY_PROMPT

    assert bool(BY_PROMPT & _names(_bound(name, tmp_path)).keys()) == expected


@pytest.mark.parametrize(
    "name", [name for name in ROUTED if name != "DeepSeek-MoE"] + ["gpt_oss", "llama4"]
)
def test_experts_are_computed_by_kernels(name: str, tmp_path: Path) -> None:
    names = _names(_bound(name, tmp_path))

    assert names["experts_add_rms_norm"] + names["routed_experts"] > 0
    assert not names.keys() & {"router", "route", "experts"}


@pytest.mark.parametrize(
    ("name", "has_codes", "joins"),
    [
        ("deepseek_v2 lite", False, True),
        ("glm4_moe", False, True),
        ("wide deepseek_v3", False, True),
        ("wide ernie4_5_moe", False, True),
        ("wide deepseek_v3", True, False),  # kernels of codes have a tile for all experts
        ("qwen2_moe", False, False),  # its shared expert has a gate
        ("wide granitemoeshared", False, False),  # its gate and up are one projection
    ],
)
def test_shared_experts_are_computed_with_the_others(
    name: str, has_codes: bool, joins: bool, tmp_path: Path
) -> None:
    from spaninfer_engine.backends.cuda.ops import CudaOps
    from spaninfer_engine.backends.cuda.weights.packing import WeightForms

    family = {**FAMILIES, **{f"wide {key}": value for key, value in WIDE.items()}}[name]
    model = Model(Oracle(family, SEED).save(tmp_path))
    program = lower(model.decoder)
    operators = Counter(operation.operator for operation in program.operations)
    weights = WeightForms(has_codes=has_codes)
    ops = CudaOps("bfloat16", "cpu", model.decoder.groups, weights=weights)

    names = _names(bind(program, ops, model.checkpoint.reader))

    shared = operators["experts"] if joins else 0
    assert names["gated_linears"] + names["gated_linear"] == operators["gate"] - shared
    assert names["experts_add_rms_norm"] + names["routed_experts"] == operators["experts"]


def test_experts_that_kernels_cannot_read_are_refused(tmp_path: Path) -> None:
    odd = replace(
        FAMILIES["qwen3_moe"],
        arguments={**FAMILIES["qwen3_moe"].arguments, "moe_intermediate_size": 36},
    )
    model = Model(Oracle(odd, SEED).save(tmp_path))
    ops = make_ops("cuda bfloat16", model.decoder.groups, device="cpu")

    with pytest.raises(
        ConfigError, match=r"inner is 36; a multiple of 8 .* choose --backend torch"
    ):
        bind(lower(model.decoder), ops, model.checkpoint.reader)


def test_sums_that_are_scaled_keep_their_norms_apart(tmp_path: Path) -> None:
    names = _names(_bound("granite", tmp_path))

    assert not names["add_rms_norm"] + names["project_add_rms_norm"]
    assert names["add"] == 6


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("gemma", "int8"), ("falcon rw", "fp8"), ("llama", "uint4"), ("deepseek_v32", "fp8")],
)
def test_codes_are_refused_where_attention_has_no_kernel_to_read_them(
    name: str, kv_dtype: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"kv_dtype {kv_dtype} is not supported for"):
        _bound(name, tmp_path, kv_dtype)
