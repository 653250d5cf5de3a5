"""Grouped GEMM with quantised weights against its definition."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from coded_weights import FORMATS, CodedWeight
from expert_routing import ROUTINGS, chosen_experts, sorted_pairs
from spaninfer_kernel_launch import get_gpu, new_stream
from spaninfer_kernels_cuda import grouped_gemm as grouped
from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import (
    Coded,
    CodedHopper,
    choose_coded,
    choose_quantized,
    fill_coded_hopper,
    launch_coded,
    launch_coded_hopper,
)
from spaninfer_kernels_cuda.grouped_gemm.tuning import Shape
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat
from spaninfer_op_reference import gated, linear, tolerance

EXPERTS, CHOSEN = 20, 3
HOPPER_TILES = [
    CodedHopper(8, 2, 0, wgmma=False, of_sm=2),
    CodedHopper(16, 4, 0),
    CodedHopper(48, 3, 0),
    CodedHopper(96, 4, 0, fold=False, blocks=2),
    CodedHopper(144, 4, 0, fold=False, blocks=2),
]
HOPPER_BYTES = 232_448
SMALLEST = 65_536  # bytes of shared memory that a block of any GPU may have


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("mean", [0.1, 4, 10, 30, 500])
def test_blocks_have_room_on_small_gpus(format, mean):
    shape = Shape(round(mean * 128), 8, 128, 1536, 2048)

    tile = choose_coded(shape, format, SMALLEST)

    assert tile.stages >= 3
    assert launch_coded(shape, tile, format, 40).shared_bytes <= SMALLEST


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 23, 150, 400, 900])
def test_a_layer_of_codes_is_its_definition(on_gpu, format, dtype, tokens):
    layer = CodedLayer(tokens, "uniform", dtype, format)

    assert layer.is_computed(on_gpu)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [23, 150])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_writes_the_rows_of_experts_and_nothing_else(on_gpu, routing, tokens):
    layer = CodedLayer(tokens, routing, np.float16, FORMATS["4 bits of 32 with zeros"])

    assert layer.is_computed(on_gpu)


@pytest.mark.gpu
@pytest.mark.parametrize("sm_count", [1, 10_000])
@pytest.mark.parametrize("tokens", [8, 16, 32, 64])
def test_every_tile_has_the_same_definition(on_gpu, tokens, sm_count):
    layer = CodedLayer(150, "zipf", ml_dtypes.bfloat16, FORMATS["4 bits of 128"])

    assert layer.is_computed(on_gpu, Coded(tokens, 2, 3), sm_count)


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("tile", HOPPER_TILES, ids=str)
def test_every_tile_on_hopper_has_the_same_definition(on_gpu, tile, format):
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    layer = CodedLayer(150, "zipf", ml_dtypes.bfloat16, format)
    fold = tile.fold and format.shift != "minimum" and not (tile.wgmma and format.group == 16)
    tile = dataclasses.replace(tile, fold=fold)

    assert layer.is_computed(on_gpu, fill_coded_hopper(tile, EXPERTS, format, gpu.shared_bytes))


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("mean", [0.1, 4, 10, 30, 60, 500])
def test_tiles_on_hopper_have_stages_and_room(format, mean):
    shape = Shape(round(mean * 128), 8, 128, 1536, 2048)

    tile = choose_quantized(shape, format, "sm_90a", HOPPER_BYTES)

    assert isinstance(tile, CodedHopper)
    assert tile.stages >= 3
    launch = launch_coded_hopper(shape, tile, format, 132)
    assert tile.of_sm * (launch.shared_bytes + 1024) <= HOPPER_BYTES + 1024
    assert isinstance(choose_quantized(shape, format, "sm_80", 166_912), Coded)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("mean", [1, 4, 9, 16, 30, 56])
def test_rows_of_most_experts_fit_into_a_tile(bits, mean):
    tile = choose_quantized(
        Shape(mean * 128, 8, 128, 1536, 2048), QuantizedFormat(bits, 128), "sm_90a", HOPPER_BYTES
    )

    assert mean + mean**0.5 <= tile.tokens <= max(8, 3 * mean)


class CodedLayer:
    """An expert layer of random codes and routing, and its products in float64.

    Its sizes are no multiples of a chunk, nor of a block.
    """

    def __init__(self, tokens, routing, dtype, format, sizes=(328, 136)):
        draw = np.random.default_rng(0)
        self.dtype, self.format = dtype, format
        self.hidden, self.inner = sizes
        ids = chosen_experts(draw, tokens, EXPERTS, CHOSEN, routing)
        self.order, self.ends = sorted_pairs(ids, EXPERTS)
        self.count, self.rows = int(self.ends[-1]), tokens * CHOSEN
        self.x, self.h = (
            draw.standard_normal(shape).astype(dtype)
            for shape in ((tokens, self.hidden), (self.rows, self.inner))
        )
        self.up = [CodedWeight(draw, 2 * self.inner, self.hidden, format) for _ in range(EXPERTS)]
        self.down = [CodedWeight(draw, self.hidden, self.inner, format) for _ in range(EXPERTS)]

    def is_computed(self, on_gpu, tile=None, sm_count=None):
        """Are both products what they are in float64, and is nothing else written?"""
        first = self.x.astype(np.float64)[self.order[: self.count] // CHOSEN]
        both = self._products(first, self.up).reshape(self.count, -1, 2, 8)
        h = gated(both[:, :, 0], both[:, :, 1], "silu").reshape(self.count, -1)
        y = self._products(self.h[: self.count].astype(np.float64), self.down)
        shape = Shape(self.rows, CHOSEN, EXPERTS, self.hidden, self.inner)
        gpu = get_gpu()
        chosen = tile or choose_quantized(shape, self.format, gpu.arch, gpu.shared_bytes)
        self.rounds_weights = not chosen.fold
        found = self._run(on_gpu, tile, sm_count)
        return all(
            self._is_near(out[: self.count], expected) and np.isnan(out[self.count :]).all()
            for out, expected in zip(found, (h, y), strict=True)
        )

    def _products(self, rows, experts):
        bounds = np.concatenate([[0], self.ends])
        return np.concatenate(
            [
                linear(rows[begin:end], expert.weight, None)
                for begin, end, expert in zip(bounds, bounds[1:], experts, strict=False)
            ]
        )

    def _is_near(self, actual, expected):
        """Within a rounding of the result, and of all weights where they are rounded."""
        if not expected.size:
            return True
        size = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
        most = tolerance(np.dtype(self.dtype).name) * (3 if self.rounds_weights else 1)
        return (np.abs(actual.astype(np.float64) - expected) <= most * size).all()

    def _run(self, on_gpu, tile, sm_count):
        gpu = get_gpu()
        gpu = dataclasses.replace(gpu, sm_count=sm_count or gpu.sm_count)
        common = {"dtype": self.dtype, "gpu": gpu, "tile": tile}
        up = grouped.prepare_quantized(
            Shape(self.rows, CHOSEN, EXPERTS, 2 * self.inner, self.hidden),
            *(self.format,), gate="silu", gathers=True, **common,
        )  # fmt: skip
        down = grouped.prepare_quantized(
            Shape(self.rows, CHOSEN, EXPERTS, self.hidden, self.inner), self.format, **common
        )
        order, ends, x, h = (on_gpu.put(each) for each in (self.order, self.ends, self.x, self.h))
        outs = [
            on_gpu.put(np.full((self.rows, width), np.nan, self.dtype))
            for width in (self.inner, self.hidden)
        ]
        (w13, f13), (w2, f2) = (
            (on_gpu.put(np.stack(each)) for each in zip(*(e.packed for e in experts), strict=True))
            for experts in (self.up, self.down)
        )
        memory = {
            "workspace": on_gpu.put(np.zeros(max(up.workspace_bytes, 1), np.uint8)),
            "ticket": on_gpu.put(np.zeros(1, np.int32)),
            "stream": None,
        }
        with gpu.current(), new_stream() as stream:
            memory["stream"] = stream
            up.launch(x, w13, ends, out=outs[0], order=order, factors=f13, **memory)
            down.launch(h, w2, ends, out=outs[1], factors=f2, **memory)
            on_gpu.wait()
            return [on_gpu.get(out) for out in outs]
