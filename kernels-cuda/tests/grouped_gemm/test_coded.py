"""Products of rows with their experts' codes against their definition."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from expert_routing import ROUTINGS, chosen_experts, sorted_pairs
from spaninfer_kernel_launch import get_gpu, new_stream
from spaninfer_kernels_cuda import grouped_gemm as grouped
from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import (
    Coded,
    choose_coded,
    choose_quantized,
    launch_coded,
)
from spaninfer_kernels_cuda.grouped_gemm.tuning import Prompt, Shape
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, pack
from spaninfer_op_reference import gated, linear, tolerance

EXPERTS, CHOSEN = 20, 3
FORMATS = {
    "4 bits of 128": QuantizedFormat(4, 128),
    "4 bits of 32 with zeros": QuantizedFormat(4, 32, "zero"),
    "4 bits of 64 with minimums": QuantizedFormat(4, 64, "minimum"),
    "8 bits of a row": QuantizedFormat(8, None),
    "8 bits of 32": QuantizedFormat(8, 32),
    "e4m3 of a row": QuantizedFormat(8, None, values="e4m3"),
    "e4m3 of 128": QuantizedFormat(8, 128, values="e4m3"),
}
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
@pytest.mark.parametrize("tokens", [1, 23, 150, 400])
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
@pytest.mark.parametrize("routing", ["zipf", "padded"])
def test_prompts_multiply_the_numbers_that_codes_stand_for(on_gpu, format, routing):
    gpu = get_gpu()
    if gpu.arch != "sm_90a":
        pytest.skip("needs Hopper")
    layer = CodedLayer(400, routing, ml_dtypes.bfloat16, format, sizes=(320, 96))
    tile = choose_quantized(Shape(128 * EXPERTS, 1, EXPERTS, 320, 96), format, *_hopper(gpu))

    assert isinstance(tile, Prompt)
    assert layer.is_computed(on_gpu, tile)


def _hopper(gpu):
    return gpu.arch, gpu.shared_bytes


@pytest.mark.parametrize(
    ("outputs", "experts", "rows", "expected"),
    [
        (1536, 128, 128 * 128, Prompt),
        (1536, 128, 100 * 128, Coded),
        (1544, 128, 128 * 128, Coded),  # records of an expert have rows of none
        (65_536, 128, 128 * 128, Coded),  # 16 GiB of numbers
    ],
)
def test_weights_are_dequantised_for_prompts_where_there_is_room(outputs, experts, rows, expected):
    shape = Shape(rows, 8, experts, outputs, 1024)

    assert isinstance(choose_quantized(shape, FORMATS["8 bits of 32"], "sm_90a", 232_448), expected)
    assert isinstance(choose_quantized(shape, FORMATS["8 bits of 32"], "sm_80", 166_912), Coded)


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
        self.up = [_Codes(draw, 2 * self.inner, self.hidden, format) for _ in range(EXPERTS)]
        self.down = [_Codes(draw, self.hidden, self.inner, format) for _ in range(EXPERTS)]

    def is_computed(self, on_gpu, tile=None, sm_count=None):
        """Are both products what they are in float64, and is nothing else written?"""
        first = self.x.astype(np.float64)[self.order[: self.count] // CHOSEN]
        both = self._products(first, self.up).reshape(self.count, -1, 2, 8)
        h = gated(both[:, :, 0], both[:, :, 1], "silu").reshape(self.count, -1)
        y = self._products(self.h[: self.count].astype(np.float64), self.down)
        self.rounds_weights = isinstance(tile, Prompt)
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
        rounds_weights = self.format.shift == "minimum" or self.rounds_weights
        most = tolerance(np.dtype(self.dtype).name) * (3 if rounds_weights else 1)
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
            "numbers": on_gpu.put(np.zeros(max(up.numbers_bytes, down.numbers_bytes, 1), np.uint8)),
            "stream": None,
        }
        with gpu.current(), new_stream() as stream:
            memory["stream"] = stream
            up.launch(x, w13, ends, out=outs[0], order=order, factors=f13, **memory)
            down.launch(h, w2, ends, out=outs[1], factors=f2, **memory)
            on_gpu.wait()
            return [on_gpu.get(out) for out in outs]


class _Codes:
    """A weight[N K] of an expert in codes, and what they mean."""

    def __init__(self, draw, outputs, inner, format):
        codes = draw.integers(0, 1 << format.bits, (outputs, inner)).astype(np.uint8)
        if format.values == "e4m3":
            codes[codes & 127 == 127] = 0x48  # neither is a number
        group = format.group or inner
        groups, top = -(-inner // group), 1 << (format.bits - 1)
        scales = (draw.uniform(0.5, 1.5, (outputs, groups)) / top).astype(np.float16)
        if format.group is None:
            scales = np.ones_like(scales)
        factors = (draw.uniform(0.5, 2, outputs) * inner**-0.5).astype(np.float32)
        if format.group is None:
            factors /= top
        shifts = None
        if format.shift == "zero":
            shifts = draw.integers(0, 1 << format.bits, (outputs, groups)).astype(np.uint16)
        if format.shift == "minimum":
            shifts = draw.uniform(0, 2, (outputs, groups)).astype(np.float16)
        packed = pack(codes, format, scales=scales, shifts=shifts, factors=factors)
        self.packed = packed.records, packed.factors
        by, to = (
            np.repeat(each, group, 1)[:, :inner] for each in (scales, shifts_of(shifts, scales))
        )
        centre = top if format.shift == "none" else 0
        numbers = codes.astype(np.float64) - centre
        if format.values == "e4m3":
            numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        if format.shift == "zero":
            numbers -= to
        numbers *= by
        if format.shift == "minimum":
            numbers -= to
        self.weight = numbers * factors[:, None]


def shifts_of(shifts, scales):
    return np.zeros(scales.shape) if shifts is None else shifts.astype(np.float64)
