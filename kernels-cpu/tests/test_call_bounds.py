"""Bounds checks of calls: anything that would make a kernel leave its memory is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from spaninfer_kernels_cpu import (
    SCALE,
    AttentionBatch,
    AttentionPlan,
    Columns,
    Epilogue,
    ExpertWeights,
    Format,
    Gemm,
    KernelError,
    KVArray,
    LayerCache,
    LayerNorm,
    Llama4Growth,
    Matrix,
    Packed,
    RmsNorm,
    RopeAngles,
    Routes,
    Sampler,
    SamplingRow,
    Scores,
    ShapeError,
    attend,
    attend_calls,
    copy_call,
    embed_call,
    formula_call,
    gather_rows_call,
    layer_norm_call,
    linear,
    llama4_scale_call,
    logn_call,
    pack,
    pack_stack,
    rms_norm_call,
    rope_call,
    route_call,
    sigmoid_gate_call,
)

ROWS = Matrix(0, 0)  # nothing here may get as far as touching it
HUGE = 2**62

ONES = np.ones(4, np.float32)


def rope(half: int = 3, heads: int = 2, size: int = 8) -> Any:
    return rope_call(ROWS, RopeAngles(0, 0, half, False), out=ROWS, heads=heads, size=size)


def copy(first: int = 2, size: int = 9, out_first: int = 1, width: int = 7, parts: int = 2) -> Any:
    columns, into = Columns(ROWS, size, first), Columns(ROWS, 8, out_first)
    return copy_call(columns, into=into, parts=parts, width=width)


def rms_norm(weight: Any = ONES, parts: int = 2) -> Any:
    return rms_norm_call(ROWS, RmsNorm(weight, 1e-5), out=ROWS, parts=parts)


def layer_norm(weight: Any = ONES, bias: Any = ONES) -> Any:
    return layer_norm_call(ROWS, LayerNorm(weight, bias, 1e-5), out=ROWS, parts=2)


def llama4_scale(length: int = 4, offset: int = 0, channels: int = 4) -> Any:
    growth = Llama4Growth(0.1, length, offset)
    return llama4_scale_call(ROWS, out=ROWS, channels=channels, position=0, growth=growth)


GOOD: dict[Callable[..., Any], tuple[tuple[Any, ...], dict[str, Any]]] = {
    rope: ((), {}),
    copy: ((), {}),
    gather_rows_call: ((ROWS,), {"indices": 0, "out": ROWS, "channels": 3}),
    embed_call: ((np.zeros((5, 4), np.float32),), {"ids": 0, "out": ROWS, "offset": 4}),
    rms_norm: ((), {}),
    layer_norm: ((), {}),
    logn_call: ((ROWS,), {"out": ROWS, "channels": 4, "position": 0, "base": 2}),
    llama4_scale: ((), {}),
    sigmoid_gate_call: ((ROWS, ROWS), {"out": ROWS, "channels": 4}),
    formula_call: ((SCALE, (ROWS,)), {"out": ROWS, "channels": 4}),
}

BAD = [
    *((rope, {"half": half}) for half in (-1, 0, 5, HUGE)),
    *((rope, {"heads": heads}) for heads in (-1, 0, HUGE)),
    (rope, {"size": 1}),
    *((copy, {"first": first}) for first in (-1, 3, HUGE)),
    *((copy, {"out_first": first}) for first in (-1, 2)),
    *((copy, {"width": count}) for count in (-1, 0, 8, HUGE)),
    *((copy, {"parts": parts}) for parts in (-1, 0)),
    (copy, {"size": 8}),
    *((gather_rows_call, {"channels": channels}) for channels in (-1, 0, HUGE)),
    *((embed_call, {"offset": offset}) for offset in (-1, 5)),
    *((rms_norm, {"parts": parts}) for parts in (-1, 0)),
    (rms_norm, {"weight": np.ones(0, np.float32)}),
    (rms_norm, {"weight": np.ones(4)}),
    (rms_norm, {"weight": np.ones(8, np.float32)[::2]}),
    (layer_norm, {"bias": np.ones(3, np.float32)}),
    *((logn_call, {"base": base}) for base in (-2, 0, 1)),
    *((logn_call, {"channels": channels}) for channels in (-1, 0)),
    *((llama4_scale, {"length": length}) for length in (-1, 0, HUGE)),
    *((llama4_scale, {"offset": offset}) for offset in (-1, HUGE)),
    (llama4_scale, {"channels": 0}),
    (sigmoid_gate_call, {"channels": 0}),
    (formula_call, {"channels": 0}),
]


@pytest.mark.parametrize("call", GOOD)
def test_what_fits_is_taken_to_the_last_number(call: Callable[..., Any]) -> None:
    positional, named = GOOD[call]

    assert call(*positional, **named).arguments


@pytest.mark.parametrize(("call", "changed"), BAD)
def test_sizes_beyond_the_memory_are_refused(
    call: Callable[..., Any], changed: dict[str, Any]
) -> None:
    positional, named = GOOD[call]

    with pytest.raises(KernelError) as caught:
        call(*positional, **{**named, **changed})

    assert str(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((5, 4), np.float64),
        np.zeros((5, 4), np.int32),
        np.zeros((0, 4), np.float32),
        np.zeros((5, 0), np.float32),
        np.zeros(4, np.float32),
        np.zeros((5, 8), np.float32)[:, ::2],
    ],
)
def test_a_table_is_rows_of_numbers_that_the_kernel_reads(table: Any) -> None:
    with pytest.raises(KernelError, match="table"):
        embed_call(table, ids=0, out=ROWS)


SCORES = {"top_k": 4, "kind": "softmax", "normalise": False, "scale": 1.0, "groups": 4,
          "group_topk": 2, "group_score": "max"}  # fmt: skip


@pytest.mark.parametrize(
    ("experts", "changed"),
    [
        (8, {"top_k": 5}),  # of two groups of two
        (8, {"top_k": 0}),
        (8, {"group_topk": 5, "top_k": 1}),
        (8, {"group_topk": 0, "top_k": 1}),
        (8, {"groups": 3}),
        (8, {"groups": 0}),
        (8, {"groups": 16}),
        (4, {"group_score": "top2", "top_k": 1}),  # groups of one
        (0, {"groups": 1}),
    ],
)
def test_experts_that_cannot_be_chosen_are_refused(experts: int, changed: dict[str, Any]) -> None:
    route_call(ROWS, experts=8, scores=SCORES, out=Routes(0, 0))

    with pytest.raises(KernelError):
        route_call(ROWS, experts=experts, scores={**SCORES, **changed}, out=Routes(0, 0))


def test_a_correction_has_a_number_for_every_expert() -> None:
    with pytest.raises(ShapeError, match="correction: expected 8 contiguous numbers"):
        route_call(
            ROWS,
            experts=8,
            scores=SCORES,
            out=Routes(0, 0),
            correction=np.zeros(7, np.float32),
        )


def test_panels_are_as_many_as_the_layout_says() -> None:
    packed = pack(np.ones((70, 9), np.float32), Format("float32"))
    larger = replace(packed.layout, outputs=200), replace(packed.layout, channels=300)

    for layout in (*larger, replace(packed.layout, outputs=0), replace(packed.layout, channels=-1)):
        with pytest.raises(ShapeError):
            Packed(layout, packed.panels)
    for panels in (packed.panels[1:], packed.panels[:, :-1], packed.panels.astype(np.int8)):
        with pytest.raises(ShapeError, match="panels: expected contiguous uint8"):
            Packed(packed.layout, panels)
    with pytest.raises(ShapeError):
        Packed(packed.layout, packed.panels, count=2)


def test_linear_takes_one_weight_and_an_output_that_can_be_written() -> None:
    stack = pack_stack([np.ones((3, 64, 8), np.float32)], Format("float32"))
    x, out = np.ones((2, 8), np.float32), np.zeros((2, 64), np.float32)

    with pytest.raises(ShapeError, match="weights in one is 3; allowed is 1 to 1"):
        linear(x, stack, out=out)
    out.flags.writeable = False
    with pytest.raises(ShapeError, match="out is read-only"):
        linear(x, stack[0], out=out)


def test_gemms_of_several_weights_have_no_bias_and_a_bias_has_a_number_per_output() -> None:
    stack = pack_stack([np.ones((3, 64, 8), np.float32)], Format("float32"))

    for weight, length in ((stack, 64), (stack[0], 63)):
        with pytest.raises(KernelError):
            Gemm(weight).calls(
                ROWS, out=ROWS, scratch=0, epilogue=Epilogue(np.zeros(length, np.float32))
            )


def test_experts_fit_together_and_no_more_are_chosen_than_there_are() -> None:
    gate_up = pack_stack([np.ones((3, 10, 8), np.float32)], Format("float32"))
    down = pack_stack([np.ones((3, 8, 5), np.float32)], Format("float32"))
    fewer = pack_stack([np.ones((2, 8, 5), np.float32)], Format("float32"))
    other = pack_stack([np.ones((3, 8, 6), np.float32)], Format("float32"))

    assert ExpertWeights(gate_up, down, 3, "silu").channels == 8
    for parts, top_k in (((gate_up, down), 4), ((gate_up, down), 0), ((gate_up, fewer), 1),
                         ((gate_up, other), 1), ((down, down), 1)):  # fmt: skip
        with pytest.raises(KernelError):
            ExpertWeights(*parts, top_k, "silu")


def _spans(*shape: int) -> LayerCache:
    cached = KVArray(np.zeros(shape, np.float32))
    return LayerCache(cached, cached, 0, 0, 0, 0)


@pytest.mark.parametrize("shape", [(3, 0, 2, 4), (3, 16, 0, 4), (3, 16, 2, 0)])
def test_spans_without_tokens_heads_or_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="may be empty"):
        _spans(*shape)

    keys = np.zeros(shape, np.float32)
    query = np.zeros((1, 2, shape[3]), np.float32)
    rows = AttentionBatch(*(np.zeros(s, np.int32) for s in ((1, 1), (1,), (1,))))
    with pytest.raises(ShapeError, match="may be empty"):
        attend(query, keys, keys, rows, Scores(1.0), out=query.copy())


def test_attention_calls_check_heads_and_slopes() -> None:
    spans, plan = _spans(3, 16, 2, 4), AttentionPlan(2, 0, 0)

    for heads, scores in ((3, Scores(1.0)), (0, Scores(1.0)),
                          (4, Scores(1.0, slopes=np.ones(3, np.float32)))):  # fmt: skip
        with pytest.raises(ShapeError):
            attend_calls(ROWS, heads=heads, spans=spans, plan=plan, scores=scores, out=ROWS)


@pytest.mark.parametrize("window", [0, -1, 2**31, HUGE])
def test_a_window_is_a_number_of_positions(window: int) -> None:
    with pytest.raises(ShapeError, match="window is"):
        Scores(1.0, window=window)


def test_arrays_at_odd_addresses_are_refused() -> None:
    odd = np.zeros(4 * 8 + 1, np.uint8)[1:].view(np.float32).reshape(1, 2, 4)
    keys = np.zeros((1, 16, 2, 4), np.float32)
    rows = AttentionBatch(*(np.zeros(s, np.int32) for s in ((1, 1), (1,), (1,))))

    with pytest.raises(ShapeError, match="query does not lie at a multiple"):
        attend(odd, keys, keys, rows, Scores(1.0), out=np.zeros((1, 2, 4), np.float32))


@pytest.mark.parametrize("ids", [[-1], [0, 7], [-(2**31)], [2**31 - 1]])
@pytest.mark.parametrize("which", ["prompt_ids", "output_ids"])
def test_ids_that_penalties_count_lie_within_the_vocabulary(which: str, ids: list[int]) -> None:
    sampler, logits = Sampler(7), np.zeros((1, 7), np.float32)
    known = {which: np.array(ids, np.int32)}

    with pytest.raises(ShapeError, match=f"of {which} is .*; allowed is 0 to 6"):
        sampler(logits, [SamplingRow(seed=0, position=0, repetition_penalty=1.5, **known)])
    plain = sampler(logits, [SamplingRow(seed=0, position=0)])
    assert (
        sampler(logits, [SamplingRow(seed=0, position=0, **known)]) == plain
    )  # nothing reads them


@pytest.mark.parametrize(
    "changed", [{"seed": -1}, {"seed": 2**64}, {"position": -1}, {"top_k": -1}, {"top_k": HUGE}]
)
def test_a_draw_is_made_of_numbers_that_its_record_holds(changed: dict[str, int]) -> None:
    draw = SamplingRow(**{"seed": 0, "position": 0, **changed})

    with pytest.raises(KernelError, match=next(iter(changed))):
        Sampler(7)(np.zeros((1, 7), np.float32), [draw])
