"""Few tokens' experts in codes against their definition; tests that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from coded_weights import FORMATS, CodedWeight
from spaninfer_kernel_launch import get_gpu
from spaninfer_kernels_cuda import moe
from spaninfer_kernels_cuda.moe import Formats, MoeShape, RouteOptions
from spaninfer_kernels_cuda.moe.coded_gemv import PreparedCodedGemv
from spaninfer_kernels_cuda.moe.coded_tuning import (
    CodedTile,
    coded_down_tile,
    coded_up_tile,
    launch_coded_down,
    launch_coded_up,
)
from spaninfer_op_reference.compare import UNITS

EXPERTS = 12
SIZES = {
    "odd": (328, 136, 3),
    "one chunk": (8, 8, 1),
    "Qwen3": (2048, 768, 8),
    "gpt-oss": (2880, 2880, 4),
    "many choices": (64, 1408, 10),
}
DTYPES = [np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("channels", "inner", "top_k"), SIZES.values(), ids=SIZES)
def test_tiles_have_all_columns_and_room_on_small_gpus(channels, inner, top_k, format):
    up, down = coded_up_tile(channels, format), coded_down_tile(inner, top_k, format)

    for tile in (up, down):
        assert 1 <= tile.chunks <= 4
        assert tile.warps * tile.blocks <= 32
        assert tile.shared_bytes(format) <= 65_536 - 1024  # of a block on any GPU; sums lie beside
    assert down.splits * top_k >= down.warps
    assert down.splits <= -(-inner // 128)


def test_a_block_has_a_strip_of_a_pair_and_of_a_token():
    shape, tile, format = MoeShape(3, 8, 2048, 768), CodedTile(4, 4), FORMATS["4 bits of 128"]

    assert launch_coded_up(shape, tile, format).grid == (24 * 96, 1, 1)
    assert launch_coded_down(shape, tile, format).grid == (3 * 128, 1, 1)
    assert launch_coded_up(MoeShape(0, 8, 2048, 768), tile, format) is None


@pytest.mark.gpu
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "biases, residual, padding"])
def test_a_layer_of_few_tokens_is_its_definition(on_gpu, format, dtype, tokens, extras):
    layer = CodedExperts(tokens, dtype, format, "odd", extras=extras)

    assert layer.accepts(layer.run(on_gpu))


@pytest.mark.gpu
@pytest.mark.parametrize("format", ["4 bits of 32 with zeros", "e4m3 of 128", "8 bits of a row"])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_size_is_its_definition(on_gpu, format, sizes):
    layer = CodedExperts(2, ml_dtypes.bfloat16, FORMATS[format], sizes, extras=True)

    assert layer.accepts(layer.run(on_gpu))


@pytest.mark.gpu
def test_a_token_has_the_same_bits_alone_and_among_few(on_gpu):
    layer = CodedExperts(4, np.float16, FORMATS["4 bits of 128"], "odd")

    together = layer.run(on_gpu)
    alone = [layer.run(on_gpu, slice(n, n + 1))[0] for n in range(layer.tokens)]

    assert (together == np.stack(alone)).all()


class CodedExperts:
    """An expert layer of random codes, and its result in float64."""

    def __init__(self, tokens, dtype, format, sizes, *, extras=False):
        draw = np.random.default_rng(0)
        self.tokens, self.dtype, self.format = tokens, dtype, format
        self.channels, self.inner, top_k = SIZES[sizes]
        self.options = RouteOptions(top_k, normalise=True)
        self.x = draw.standard_normal((tokens, self.channels)).astype(dtype)
        self.logits = draw.standard_normal((tokens, EXPERTS)).astype(np.float32)
        self.up = [CodedWeight(draw, 2 * self.inner, self.channels, format) for _ in range(EXPERTS)]
        self.down = [CodedWeight(draw, self.channels, self.inner, format) for _ in range(EXPERTS)]
        self.b13 = self.b2 = self.residual = self.slots = None
        if extras:
            self.b13, self.b2, self.residual = (
                draw.standard_normal(shape).astype(dtype)
                for shape in (
                    (EXPERTS, 2 * self.inner),
                    (EXPERTS, self.channels),
                    (tokens, self.channels),
                )
            )
            self.slots = np.where(np.arange(tokens) % 3 == 1, -1, 7).astype(np.int32)

    def run(self, on_gpu, some=slice(None)):
        """The result for some tokens by the kernels."""
        x, logits = self.x[some], self.logits[some]
        step = moe.prepare(
            MoeShape(len(x), self.options.top_k, self.channels, self.inner),
            self.options, experts=EXPERTS, act="silu", dtype=self.dtype, gpu=get_gpu(),
            formats=Formats(self.format, self.format),
        )  # fmt: skip
        assert isinstance(step._few.gemv, PreparedCodedGemv)
        (w13, f13), (w2, f2) = (
            (on_gpu.put(np.stack(each)) for each in zip(*(e.packed for e in experts), strict=True))
            for experts in (self.up, self.down)
        )
        b13, b2, residual, slots = (
            None if each is None else on_gpu.put(each)
            for each in (self.b13, self.b2, self.residual, self.slots)
        )
        out = on_gpu.put(np.full(x.shape, np.nan, self.dtype))
        step.launch(
            on_gpu.put(x), on_gpu.put(logits), moe.Experts(w13, w2, b13, b2, f13, f2), out=out,
            residual=residual, slots=slots, ticket=on_gpu.put(np.zeros(4, np.uint8)),
            workspace=on_gpu.put(np.full(step.workspace_bytes, 255, np.uint8)),
        )  # fmt: skip
        on_gpu.wait()
        return on_gpu.get(out)

    def accepts(self, y):
        """Return True if `y` is the definition's result up to the rounding of 16 bits, twice."""
        both = np.stack([each.weight for each in self.up])
        apart = both.reshape(EXPERTS, -1, 2, 8, self.channels)
        gate, up = (apart[:, :, n].reshape(EXPERTS, self.inner, -1) for n in (0, 1))
        biases = {}
        if self.b13 is not None:
            halves = self.b13.astype(np.float64).reshape(EXPERTS, -1, 2, 8)
            in_order = [halves[:, :, n].reshape(EXPERTS, -1) for n in (0, 1)]
            b2 = self.b2.astype(np.float64)
            biases = {"gate_up_bias": np.concatenate(in_order, 1), "down_bias": b2}
        ids, shares = definition.route(
            self.logits.astype(np.float64), top_k=self.options.top_k, normalise=True
        )
        if self.slots is not None:
            shares = np.where(self.slots[:, None] < 0, 0, shares)
        down = np.stack([each.weight for each in self.down])
        x = self.x.astype(np.float64)
        exact = definition.experts(x, gate, up, down, ids, shares, "silu", **biases)
        size = np.abs(exact).max(1, initial=0, keepdims=True) + shares.sum(1, keepdims=True)
        if self.residual is not None:
            exact = exact + self.residual.astype(np.float64)
        unit = UNITS[np.dtype(self.dtype).name]
        error = np.abs(y.astype(np.float64) - exact)
        return bool((error <= 2 * unit * (np.abs(exact) + 2 * size)).all())
