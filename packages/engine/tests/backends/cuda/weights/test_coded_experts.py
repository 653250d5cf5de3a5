"""Experts published as quantised weights, and their GEMMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from published import METHODS
from spaninfer_engine.load.packed.packing import packing_of
from spaninfer_engine.load.quantised.checkpoint import with_quantised
from spaninfer_op_reference import (
    QuantizedWeight,
    dequantize_weight,
    gated,
    stack_weights,
)

torch = pytest.importorskip("torch")

from host_packing import pack_on_host  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.experts import ExpertCall, ExpertLayer  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels  # noqa: E402
from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm  # noqa: E402
from spaninfer_engine.backends.cuda.ops import CudaOps  # noqa: E402
from spaninfer_engine.backends.cuda.weights.coded_experts import (  # noqa: E402
    can_hold,
    expert_format,
    pack_coded,
    round_experts,
)
from spaninfer_engine.backends.cuda.weights.experts import DOWN, GATE_UP  # noqa: E402
from spaninfer_engine.backends.cuda.weights.packing import WeightForms  # noqa: E402
from spaninfer_engine.backends.cuda.weights.quantised import (  # noqa: E402
    format_of_packing,
    numbers_of,
    put_codes,
)
from spaninfer_engine.backends.cuda.weights.scaled import codes_of_packing  # noqa: E402
from spaninfer_kernels_cuda import moe  # noqa: E402
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat  # noqa: E402

Array = NDArray[Any]
EXPERTS, TOP_K, CHANNELS, INNER = 5, 2, 512, 256
KEPT = ["GPTQ", "AWQ", "W4A16", "W8A16", "W8A8", "NVFP4", "FP8 blocks", "FP8 per row"]


class _Entry:
    def __init__(self, array: Array) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def read(self) -> Array:
        return self._array


def _stack(name: str, rows: int, columns: int) -> QuantizedWeight:
    """Return a weight[E rows columns] of experts by a published method."""
    weights = []
    for seed in range(EXPERTS):
        made = METHODS[name].write(rows, columns, np.random.default_rng(seed))
        entries = {f"m.{part}": _Entry(array) for part, array in made.tensors.items()}
        config = {"quantization_config": METHODS[name].settings}
        entry = with_quantised("here", entries, config)["m.weight"]  # type: ignore[arg-type]
        weights.append(entry.load())  # type: ignore[union-attr]
    return stack_weights(weights)


@pytest.mark.parametrize("name", ["FP8 blocks", "FP8 per row"])
def test_fp8_stands_for_the_same_numbers_within_a_rounding_of_scales(name: str) -> None:
    weight = _stack(name, INNER, CHANNELS)[1]
    format = expert_format([weight.format])
    assert format is not None

    codes = torch.empty(weight.shape, dtype=torch.uint8)
    put_codes(weight, format, codes, _upload)
    scales, _, factors = (
        each.double().numpy() for each in numbers_of(weight, format, torch.device("cpu"))
    )
    found = codes.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64) * factors[:, None]
    if format.group is not None:
        found *= np.repeat(scales, format.group, 1)

    exact = dequantize_weight(weight).astype(np.float64)
    assert (np.abs(found - exact) <= 2.0**-11 * np.abs(exact)).all()


def test_experts_of_formats_without_a_kernel_are_expanded() -> None:
    assert expert_format([_stack("GPTQ reordered", 64, 128).format]) is None
    one, other = (_stack(name, 64, 128).format for name in ("GPTQ", "W8A16"))
    assert expert_format([one, other]) is None


@pytest.mark.parametrize(("name", "group"), [("MXFP4", 32), ("NVFP4", 16)])
def test_4_bit_floats_take_4_bits(name: str, group: Any) -> None:
    format = expert_format([_stack(name, 64, 128).format])

    assert format == QuantizedFormat(4, group, values="e2m1")


def test_odd_sizes_are_expanded() -> None:
    weight = _stack("W8A8", 64, 128)

    assert can_hold([weight])
    assert not can_hold([replace(weight, codes=weight.codes[:, :60])])
    assert not can_hold([replace(weight, codes=weight.codes[:, :, :60])])


def test_experts_rounded_for_activations_in_e4m3_are_those_of_int4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack_on_host(monkeypatch)
    gemm = QuantizedGemm(Kernels(torch.bfloat16, torch.device("cpu")))
    numbers = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(0))

    packed, expected = (
        round_experts(numbers, format_of_packing(packing_of(each, 64)), gemm)
        for each in ("w4afp8", "int4")
    )

    assert packed.format == expected.format == QuantizedFormat(4, 64)
    assert torch.equal(packed.records, expected.records)
    assert torch.equal(packed.factors, expected.factors)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("tokens", [1, 70])
def test_a_layer_of_published_codes_is_its_definition(name: str, tokens: int) -> None:
    gate, up = (_stack(name, INNER, CHANNELS) for _ in range(2))
    down = _stack(name, CHANNELS, INNER)
    kernels = Kernels(torch.bfloat16, torch.device("cuda"))
    gemm, format = QuantizedGemm(kernels), expert_format([gate.format])
    assert format is not None
    upload = _upload
    w13 = pack_coded([gate, up], format, gemm, upload, gated=True)
    w2 = pack_coded([down], format, gemm, upload, gated=False)
    rule = moe.RouteOptions(TOP_K, normalise=True)
    formats = moe.Formats(format, format)
    layer = ExpertLayer(EXPERTS, CHANNELS, INNER, "silu", rule, formats)
    random = np.random.default_rng(1)
    x = random.standard_normal((tokens, CHANNELS)).astype(ml_dtypes.bfloat16)
    logits = random.standard_normal((tokens, EXPERTS)).astype(np.float32)

    weights = moe.Experts(w13.records, w2.records, f13=w13.factors, f2=w2.factors)
    y = kernels.experts.run(layer, _on_gpu(x), torch.from_numpy(logits).cuda(), ExpertCall(weights))

    expected = _defined(x.astype(np.float64), logits, *map(dequantize_weight, (gate, up, down)))
    error = np.abs(y.float().cpu().numpy() - expected)
    size = np.sqrt(np.mean(expected**2, 1, keepdims=True))  # of each expert's results, rounded too
    assert (error <= 2.0**-7 * (np.abs(expected) + 2 * size)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [INNER, 136], ids=["whole blocks", "parts of blocks"])
@pytest.mark.parametrize(
    ("quantize", "most"), [("int8", 0.02), ("int4", 0.2), ("fp8", 0.06), ("w4afp8", 0.2)]
)
def test_experts_are_rounded_while_loading_as_other_weights_are(
    quantize: Any, most: float, inner: int
) -> None:
    packing = packing_of(quantize, None)
    weights = WeightForms(codes_of_packing(packing) or format_of_packing(packing))
    ops = CudaOps("bfloat16", weights=weights)
    random = np.random.default_rng(0)
    gate, up, down = (
        (random.standard_normal((EXPERTS, *shape)) * shape[1] ** -0.5).astype(np.float32)
        for shape in ((inner, CHANNELS), (inner, CHANNELS), (CHANNELS, inner))
    )
    w13, w2 = ops.pack([gate, up], GATE_UP), ops.pack([down], ops.expanded_layout(DOWN))
    layer = ExpertLayer(
        *(EXPERTS, CHANNELS, inner, "silu", moe.RouteOptions(TOP_K, normalise=True)),
        moe.Formats(w13.format, w2.format),
    )
    x = random.standard_normal((3, CHANNELS)).astype(ml_dtypes.bfloat16)
    logits = random.standard_normal((3, EXPERTS)).astype(np.float32)

    weights = moe.Experts(w13.records, w2.records, f13=w13.factors, f2=w2.factors)
    call = ExpertCall(weights)
    y = ops.kernels.experts.run(layer, _on_gpu(x), torch.from_numpy(logits).cuda(), call)

    expected = _defined(x.astype(np.float64), logits, gate, up, down)
    error = y.float().cpu().numpy() - expected
    assert np.sqrt(np.mean(error**2) / np.mean(expected**2)) < most
    # 8.5 bits a weight and whole blocks of 64 outputs, of bfloat16's 16
    assert w13.nbytes < 0.65 * 2 * (gate.size + up.size)


def _upload(array: Array, to: Any) -> None:
    to.copy_(torch.from_numpy(array))


def _on_gpu(array: Array) -> Any:
    return torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)


def _defined(x: Array, logits: Array, gate: Array, up: Array, down: Array) -> Array:
    """The layer in float64, but for the inner numbers, which kernels round."""
    out = np.zeros_like(x)
    for t, scores in enumerate(np.exp(logits.astype(np.float64))):
        chosen = np.argsort(-scores, kind="stable")[:TOP_K]
        for e in chosen:
            inner = gated(
                gate[e].astype(np.float64) @ x[t], up[e].astype(np.float64) @ x[t], "silu"
            )
            out[t] += scores[e] / scores[chosen].sum() * (down[e].astype(np.float64) @ inner)
    return out
