"""Kernels compiled for a few numbers of rows that stand for all others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import ml_dtypes  # noqa: E402
from span_attention import Format, SpanLayout, decode  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.experts import ExpertCall, ExpertLayer  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.sizes import EXPERT_TOKENS, ROWS  # noqa: E402
from spaninfer_kernels_cuda import gemm, grouped_gemm, moe  # noqa: E402
from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import choose_quantized  # noqa: E402
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat  # noqa: E402

SHARED_BYTES = 227 * 1024  # of an H200

# Outputs, K and gate of models from 0.5 to 32 billion parameters, and of odd ones.
PRODUCTS = [
    *((1152, 896, None), (256, 896, None), (9728, 896, "silu"), (896, 4864, None)),
    *((4608, 3584, None), (1024, 3584, None), (3584, 3584, None), (37888, 3584, "silu")),
    *((3584, 18944, None), (152064, 3584, None), (6144, 4096, None), (28672, 4096, "gelu")),
    *((4096, 14336, None), (55296, 5120, "silu"), (5120, 27648, None), (256, 4096, None)),
    *((72, 64, None), (264, 72, "relu"), (100, 64, None), (64, 8192, None), (9001, 520, None)),
]


@pytest.mark.parametrize(("outputs", "inner", "gate"), PRODUCTS)
def test_gemms_of_any_number_of_tokens_have_the_kernels_of_these(outputs, inner, gate):
    def kernels(numbers):
        shapes = (gemm.Shape(rows, outputs, inner) for rows in numbers)
        return {
            gemm.variant_for(
                gemm.tuning.choose(shape, "sm_90a", SHARED_BYTES, gated=gate is not None),
                ml_dtypes.bfloat16,
                gate,
            )
            for shape in shapes
            if gemm.is_faster(shape, "sm_90a", gated=gate is not None)
        }

    assert kernels(ROWS) == kernels(range(1, gemm.MAX_ROWS + 1))


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(28, 4, 128), (32, 2, 64), (8, 8, 256)])
def test_so_have_decodes_of_any_number_of_requests(format, heads, kv_heads, size):
    layout = SpanLayout.contiguous(
        span_len=32, kv_heads=kv_heads, key_size=size, value_size=size, format=format, num_layers=2
    )

    def tunings(numbers):
        return {decode.tune(layout, heads, requests) for requests in numbers}

    assert tunings(ROWS) == tunings(range(1, 600))


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (32, 4), (64, 6), (128, 8), (512, 10)])
def test_so_have_experts_of_any_number_of_tokens(experts, chosen):
    def kernels(numbers):
        return {
            "gemv"
            if moe.tuning.takes_gemv(moe.MoeShape(tokens, chosen, 2048, 768), experts)
            else grouped_gemm.tuning.choose(
                grouped_gemm.Shape(tokens * chosen, chosen, experts, 1536, 2048),
                "sm_90a",
                SHARED_BYTES,
            )
            for tokens in numbers
        }

    assert kernels(EXPERT_TOKENS) == kernels(range(1, 8193))


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (32, 4), (64, 6), (128, 8), (512, 10)])
def test_so_have_experts_in_codes(experts, chosen):
    format = QuantizedFormat(4, 128)

    def tiles(numbers):
        shapes = (grouped_gemm.Shape(n * chosen, chosen, experts, 1536, 2048) for n in numbers)
        return {choose_quantized(shape, format, "sm_90a", SHARED_BYTES) for shape in shapes}

    assert tiles(EXPERT_TOKENS) == tiles(range(1, 8193))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [3, 200])
def test_rows_that_pad_a_step_choose_no_expert(tokens):
    layer = ExpertLayer(8, 64, 32, "silu", moe.RouteOptions(2, normalise=True))
    random = torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=random, device="cuda").bfloat16()

    x, residual, logits = draw(tokens, 64), draw(tokens, 64), draw(tokens, 8).float()
    weights = moe.Experts(draw(8, 64, 64), draw(8, 64, 32))
    slots = torch.arange(tokens, dtype=torch.int32, device="cuda")
    slots[1::2] = -1
    kernels, before = Kernels(torch.bfloat16, torch.device("cuda")), residual.clone()

    y = kernels.experts.run(layer, x, logits, ExpertCall(weights, residual=residual, slots=slots))

    assert torch.equal(y[1::2], before[1::2])
    assert not torch.equal(y[::2], before[::2])
