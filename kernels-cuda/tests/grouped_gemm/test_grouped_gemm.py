"""Grouped GEMM against its definition."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from expert_routing import ROUTINGS, chosen_experts, sorted_pairs
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_kernels_cuda import grouped_gemm as grouped
from spaninfer_kernels_cuda.grouped_gemm import TILES
from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    General,
    Prompt,
    Shape,
    fill_prompt,
    fill_stream,
)
from spaninfer_op_reference import gated, linear, tolerance

DTYPES = [np.float16, ml_dtypes.bfloat16]
EXPERTS, CHOSEN = 40, 3


def test_the_variant_carries_the_tile_and_the_gate():
    variant = grouped.variant_for(
        General(8, 4), ml_dtypes.bfloat16, 40, "clamped_swiglu", gathers=True, shared=2
    )

    assert str(variant) == (
        "grouped_general[ACT=clamped_swiglu EXPERTS=64 GATED=1 GATHERS=1 ROUTED=38 SHARED=2 "
        "STAGES=4 T=bfloat16 TOKENS=8]"
    )
    assert "sm_75" not in variant.architectures


def test_layers_without_shared_experts_have_one_variant():
    some, more = (
        grouped.variant_for(General(8, 4), np.float16, experts, gathers=True)
        for experts in (33, 64)
    )

    assert some == more


def test_tma_and_wgmma_are_for_hopper_alone():
    on_hopper = [tile for tile in TILES if not isinstance(tile, General)]

    variants = [grouped.variant_for(tile, np.float16, 8, gathers=False) for tile in on_hopper]

    assert {variant.architectures for variant in variants} == {("sm_90a",)}


def test_types_and_gates_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="float32; 16-bit floats only"):
        grouped.variant_for(General(8, 4), np.float32, 8, gathers=False)
    with pytest.raises(ShapeError, match="no gate 'swish'; there are silu, gelu"):
        grouped.variant_for(General(8, 4), np.float16, 8, "swish", gathers=False)


def test_arguments_that_do_not_fit_are_named():
    x, weight = np.zeros((6, 64), np.float16), np.zeros((4, 32, 64), np.float16)
    ends, order = np.zeros(4, np.int32), np.zeros(12, np.int32)

    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        grouped.grouped_gemm(x, weight, ends)
    with pytest.raises(ShapeError, match="weight: K is 72, but x has K = 64"):
        grouped.grouped_gemm(x, np.zeros((4, 32, 72), np.float16), ends)
    with pytest.raises(ShapeError, match="ends: E is 5, but weight has E = 4"):
        grouped.grouped_gemm(x, weight, np.zeros(5, np.int32))
    with pytest.raises(ShapeError, match="order: axis 0 is 12, but the kernel needs 6"):
        grouped.grouped_gemm(x, weight, ends, order=order)
    with pytest.raises(ShapeError, match="bias: axis 1 is 16, but the kernel needs 32"):
        grouped.grouped_gemm(x, weight, ends, bias=np.zeros((4, 16), np.float16))
    with pytest.raises(DTypeError, match="ends holds int64, but the kernel needs int32"):
        grouped.grouped_gemm(x, weight, ends.astype(np.int64))
    with pytest.raises(ShapeError, match="has 24 rows; a multiple of 16"):
        grouped.grouped_gemm(x, weight[:, :24].copy(), ends, gate="silu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 23, 150])
def test_a_layer_is_its_definition(on_gpu, dtype, routing, tokens):
    given = Layer(tokens, routing, dtype)

    h = grouped.grouped_gemm(
        *(on_gpu.put(each) for each in (given.x, given.w13, given.ends)),
        order=on_gpu.put(given.order),
        chosen=CHOSEN,
        bias=on_gpu.put(given.b13),
        gate="silu",
    )
    y = grouped.grouped_gemm(
        *(on_gpu.put(each) for each in (given.h, given.w2, given.ends)), bias=on_gpu.put(given.b2)
    )

    assert near(on_gpu.get(h)[: given.count], given.up("silu"), dtype)
    assert near(on_gpu.get(y)[: given.count], given.down(), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [*TILES, General(64, 3)], ids=str)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_tile_writes_the_rows_of_experts_and_nothing_else(on_gpu, tile, routing):
    for_this_gpu(tile)
    given = Layer(450, routing, np.float16)

    h, y = run(on_gpu, given, tile, "clamped_swiglu")

    assert near(h[: given.count], given.up("clamped_swiglu"), np.float16)
    assert near(y[: given.count], given.down(), np.float16)
    assert np.isnan(h[given.count :]).all()
    assert np.isnan(y[given.count :]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("tile", [tile for tile in TILES if isinstance(tile, Prompt)], ids=str)
def test_experts_may_have_any_number_of_rows(on_gpu, tile, dtype):
    for_this_gpu(tile)
    given = Layer.of_counts(
        [*range(0, 390, 13), 15, 16, 17, 191, 192, 193, 384, 385, 577, 1], dtype
    )

    h, y = run(on_gpu, given, tile, "silu")

    assert near(h[: given.count], given.up("silu"), dtype)
    assert near(y[: given.count], given.down(), dtype)
    assert np.isnan(wide(h[given.count :])).all()


@pytest.mark.gpu
@pytest.mark.parametrize("gate", grouped.GATES)
@pytest.mark.parametrize("kind", [0, -1], ids=["general", "prompt"])
def test_every_gate_is_its_definition(on_gpu, gate, kind):
    tile = for_this_gpu(TILES[kind])
    given = Layer(40, "uniform", np.float16)

    h, _ = run(on_gpu, given, tile, gate)

    assert near(h[: given.count], given.up(gate), np.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("sm_count", [1, 7, 10_000])
@pytest.mark.parametrize("tile", [TILES[0], TILES[2], *TILES[-4:]], ids=str)
def test_however_many_blocks_share_the_tasks_the_bits_are_the_same(on_gpu, tile, sm_count):
    for_this_gpu(tile)
    given = Layer(150, "zipf", ml_dtypes.bfloat16)

    usual = run(on_gpu, given, tile, "silu")
    others = run(on_gpu, given, tile, "silu", sm_count=sm_count)

    for one, other in zip(usual, others, strict=True):
        assert (one[: given.count] == other[: given.count]).all()


@pytest.mark.gpu
def test_a_layer_captured_into_a_graph_follows_what_its_inputs_then_hold(on_gpu):
    gpu = get_gpu()
    first, second = (Layer(33, routing, np.float16) for routing in ("uniform", "padded"))
    layer = grouped.prepare_layer(
        **dict(tokens=33, experts=EXPERTS, chosen=CHOSEN, hidden=first.hidden, inner=first.inner),
        **dict(dtype=np.float16, gpu=gpu, gate="silu"),
    )
    x, order, ends, w13, w2 = (
        on_gpu.put(each) for each in (first.x, first.order, first.ends, first.w13, first.w2)
    )
    h = on_gpu.put(np.full((99, first.inner), np.nan, np.float16))
    y = on_gpu.put(np.full((99, first.hidden), np.nan, np.float16))

    def launch(stream, _):
        layer.up(x, w13, order, ends, out=h, stream=stream)
        layer.down(h, w2, ends, out=y, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch, 2) as replay:
        on_gpu.wait()
        for given in (first, second):
            order[:], ends[:] = on_gpu.put(given.order), on_gpu.put(given.ends)
            on_gpu.wait()
            replay()
            on_gpu.wait()
            inner = given.products(wide(first.x)[given.tokens_of_rows], first.w13, None)
            middle = gated_rows(inner, "silu").astype(np.float16)
            expected = given.products(wide(middle), first.w2, None)
            assert near(on_gpu.get(y)[: given.count], expected, np.float16)


class Layer:
    """An expert layer with random weights and routing, and its products in float64."""

    hidden, inner = 328, 136  # no multiples of a chunk, nor of a tile

    def __init__(self, tokens, routing, dtype, seed=0):
        draw = np.random.default_rng(seed)
        ids = chosen_experts(draw, tokens, EXPERTS, CHOSEN, routing)
        self.fill(draw, tokens, *sorted_pairs(ids, EXPERTS), dtype)

    @classmethod
    def of_counts(cls, counts, dtype):
        """A layer whose experts have these numbers of rows, of any tokens, and a few have none."""
        assert len(counts) == EXPERTS
        draw, layer, tokens = np.random.default_rng(0), cls.__new__(cls), sum(counts) // CHOSEN + 2
        order = draw.permutation(tokens * CHOSEN).astype(np.int32)
        layer.fill(draw, tokens, order, np.cumsum(counts).astype(np.int32), dtype)
        return layer

    def fill(self, draw, tokens, order, ends, dtype):
        """Random tokens, weights and biases for rows in this order."""
        self.order, self.ends = order, ends
        self.count = int(self.ends[-1])
        self.tokens_of_rows = self.order[: self.count] // CHOSEN
        rows = tokens * CHOSEN

        def random(*shape, spread=1.0):
            return (spread * draw.standard_normal(shape)).astype(dtype)

        self.x, self.h = random(tokens, self.hidden), random(rows, self.inner)
        self.w13 = random(EXPERTS, 2 * self.inner, self.hidden, spread=self.hidden**-0.5)
        self.w2 = random(EXPERTS, self.hidden, self.inner, spread=self.inner**-0.5)
        self.b13, self.b2 = random(EXPERTS, 2 * self.inner), random(EXPERTS, self.hidden)

    def products(self, rows, weight, bias):
        """Rows, as many as experts have, with the weight of their expert."""
        parts, begin = [], 0
        for expert, end in enumerate(self.ends):
            add = None if bias is None else wide(bias[expert])
            parts.append(linear(rows[begin:end], wide(weight[expert]), add))
            begin = end
        return np.concatenate(parts)

    def up(self, gate):
        """The gated products of tokens."""
        products = self.products(wide(self.x)[self.tokens_of_rows], self.w13, self.b13)
        return gated_rows(products, gate)

    def down(self):
        """The products of h."""
        return self.products(wide(self.h[: self.count]), self.w2, self.b2)


def gated_rows(products, gate):
    both = products.reshape(len(products), -1, 2, 8)
    return gated(both[:, :, 0], both[:, :, 1], gate).reshape(len(products), -1)


def for_this_gpu(tile):
    if not isinstance(tile, General) and get_gpu().arch != "sm_90a":
        pytest.skip("needs Hopper")
    return tile


def run(on_gpu, given, tile, gate, sm_count=None):
    """Both products with a tile, written over NaN."""
    gpu = get_gpu()
    if isinstance(tile, Prompt):
        tile = fill_prompt(tile, EXPERTS, gpu.shared_bytes)
    elif not isinstance(tile, General):
        tile = fill_stream(tile, EXPERTS)
    gpu = dataclasses.replace(gpu, sm_count=sm_count or gpu.sm_count)
    rows, dtype = len(given.h), given.x.dtype
    up = grouped.prepare(
        Shape(rows, CHOSEN, EXPERTS, 2 * given.inner, given.hidden),
        **dict(dtype=dtype, gpu=gpu, gate=gate, gathers=True, tile=tile),
    )
    down = grouped.prepare(
        Shape(rows, CHOSEN, EXPERTS, given.hidden, given.inner), dtype=dtype, gpu=gpu, tile=tile
    )
    x, w13, order, ends, b13, h, w2, b2 = (
        on_gpu.put(each)
        for each in (
            *(given.x, given.w13, given.order, given.ends, given.b13),
            *(given.h, given.w2, given.b2),
        )
    )
    outs = [
        on_gpu.put(np.full((rows, width), np.nan, dtype)) for width in (given.inner, given.hidden)
    ]
    ticket = on_gpu.put(np.zeros(1, np.int32))
    shared = {
        "workspace": on_gpu.put(np.zeros(max(up.workspace_bytes, 1), np.uint8)),
        "ticket": ticket,
    }
    with get_gpu().current(), new_stream() as stream:
        up.launch(x, w13, ends, out=outs[0], order=order, bias=b13, stream=stream, **shared)
        down.launch(h, w2, ends, out=outs[1], bias=b2, stream=stream, **shared)
        on_gpu.wait()
        assert on_gpu.get(ticket) == 0
        return [on_gpu.get(out) for out in outs]


def wide(array):
    return array.astype(np.float64)


def near(actual, expected, dtype):
    """Is each number within the tolerance of itself, or of all where its terms have cancelled?"""
    if not expected.size:
        return True
    size = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
    return (np.abs(wide(actual) - expected) <= tolerance(np.dtype(dtype).name) * size).all()
