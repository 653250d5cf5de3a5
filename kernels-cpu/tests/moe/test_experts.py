"""GEMMs of experts against the definition, computed with dequantised weights."""

import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from spaninfer_kernels_cpu import (
    DTypeError,
    Format,
    KernelError,
    ShapeError,
    experts,
    pack_stack,
    unpack,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels

FORMATS = [
    Format("int8", 32),
    *(
        pytest.param(format, marks=pytest.mark.slow)
        for format in (Format("float32"), Format("bfloat16"), Format("int4", 64))
    ),
]


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 2, 40])
def test_tokens_get_the_weighted_sum_of_their_experts(format, tokens):
    x, gate_up, down, ids, weights, out = problem(format, tokens)

    experts(x, gate_up, down, ids, weights, "silu", out=out)

    expected = definition(x, gate_up, down, ids, weights)
    error = np.abs(out - expected) / np.abs(expected).max(initial=1e-9)
    if format.is_quantised:  # sums in another order tip a code of an activation now and then
        assert (error > 2e-6).any(1).sum() <= 2 + tokens // 10
        assert error.max(initial=0) <= 0.02
    else:  # two bfloat16, where an activation is that, are within 2^-17 of it
        one, _ = micro_kernels(format, rounded=False, level=active_level())
        assert error.max(initial=0) <= (2e-6 if one.parts == 1 else 1e-5)


def test_biases_join_the_gemms_of_experts_of_clamped_swiglu():
    x, gate_up, down, ids, weights, out = problem(Format("float32"), 40)
    rng = np.random.default_rng(8)
    of_gate_up, of_down = (
        rng.standard_normal((each.count, each.layout.outputs), np.float32) * 8
        for each in (gate_up, down)
    )
    biases = {"gate_up_bias": of_gate_up, "down_bias": of_down}

    experts(x, gate_up, down, ids, weights, "clamped_swiglu", out=out, **biases)

    both, lowering = (
        np.stack([unpack(each[expert]).astype(float) for expert in range(each.count)])
        for each in (gate_up, down)
    )
    gate, up = np.split(both, 2, 1)
    expected = op_reference.experts(
        *(x.astype(float), gate, up, lowering, ids, weights.astype(float), "clamped_swiglu"),
        **biases,
    )
    assert np.abs(out - expected).max() <= 1e-5 * np.abs(expected).max()


def definition(x, gate_up, down, ids, weights):
    """The result in float64: weights are what they were packed as, and so are activations."""
    out = np.zeros(x.shape)
    for token, expert in np.ndindex(ids.shape):
        number = ids[token, expert]
        raised = multiplied(x[token].astype(float), gate_up[number])
        lowered = multiplied(op_reference.gated(*np.split(raised, 2), "silu"), down[number])
        out[token] += weights[token, expert].astype(float) * lowered
    return out


def multiplied(x, weight):
    layout = weight.layout
    if layout.format.is_quantised:
        starts = range(0, layout.channels, layout.group_channels)
        groups = [x[None, start : start + layout.group_channels] for start in starts]
        coded = [codes * scale for codes, scale in map(op_reference.quantize_rows, groups)]
        x = np.concatenate(coded, 1)[0]
    return unpack(weight).astype(float) @ x


def test_all_tokens_may_choose_one_expert_and_none_the_others():
    x, gate_up, down, ids, weights, out = problem(Format("int8", 32), 70)
    ids[:] = 4
    alone = np.full_like(out, np.nan)

    experts(x, gate_up, down, ids, weights, "gelu", out=out)
    experts(x, gate_up, down, ids[:, :1].copy(), weights.sum(1, keepdims=True), "gelu", out=alone)

    np.testing.assert_allclose(out, alone, rtol=1e-5, atol=1e-6)


def test_weights_that_do_not_fit_are_named():
    x, gate_up, down, ids, weights, out = problem(Format("float32"), 3)

    with pytest.raises(ShapeError, match="act is 'swish'"):
        experts(x, gate_up, down, ids, weights, "swish", out=out)
    with pytest.raises(ShapeError, match="gate_up: expected 6 weights"):
        experts(x, down, down, ids, weights, "silu", out=out)
    with pytest.raises(ShapeError, match="gate_up: expected 6 weights"):
        experts(x, gate_up[0], down, ids, weights, "silu", out=out)
    with pytest.raises(ShapeError, match="weights: expected contiguous"):
        experts(x, gate_up, down, ids, weights[:2], "silu", out=out)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_result_of_another_type_is_refused_and_nothing_is_written(dtype):
    x, gate_up, down, ids, weights, out = problem(Format("float32"), 3)
    other = np.full(out.shape, 7, dtype)

    with pytest.raises(DTypeError, match=f"out holds {np.dtype(dtype)}; the kernel takes float32"):
        experts(x, gate_up, down, ids, weights, "silu", out=other)

    assert (other == 7).all()


def test_experts_that_there_are_not_and_arrays_that_are_read_only_are_refused():
    x, gate_up, down, ids, weights, out = problem(Format("float32"), 3)

    for wrong in (-1, 6):
        ids[1, 2] = wrong
        with pytest.raises(KernelError, match=f"ids holds {wrong}; there are 6 experts"):
            experts(x, gate_up, down, ids, weights, "silu", out=out)
    ids[1, 2] = 5
    out.setflags(write=False)
    with pytest.raises(KernelError, match="out is read-only"):
        experts(x, gate_up, down, ids, weights, "silu", out=out)


def problem(format, tokens, num_experts=6, per_token=3, channels=96, inner=70):
    rng = np.random.default_rng(tokens)
    draw = lambda *shape: (0.2 * rng.standard_normal(shape)).astype(np.float32)  # noqa: E731
    gate, up = draw(num_experts, inner, channels), draw(num_experts, inner, channels)
    gate_up = pack_stack([gate, up], format)
    down = pack_stack([draw(num_experts, channels, inner)], format)
    chosen = [rng.permutation(num_experts)[:per_token] for _ in range(tokens)]
    ids = np.array(chosen, np.int32).reshape(tokens, per_token)
    weights = rng.uniform(size=(tokens, per_token)).astype(np.float32)
    return (
        draw(tokens, channels),
        gate_up,
        down,
        ids,
        weights,
        np.full((tokens, channels), np.nan, "f4"),
    )
