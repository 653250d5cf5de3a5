"""Whole models with weights of 4 bits behind activations in e4m3, beside their definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case
from noise import rms
from numpy.typing import NDArray
from oracle import prompt
from spaninfer_engine.backends.reference.ops import ReferenceOps
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat
from stepping import CodedActivations, Model

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.cuda.weights.quantised import round_weight  # noqa: E402

pytestmark = pytest.mark.gpu

Load = Callable[[str], Case]

SPAN_LEN = 16
TOKENS = prompt(256)


class RoundedWeights(ReferenceOps):
    """The definition with the numbers that weights' codes stand for."""

    def __init__(self, format: QuantizedFormat) -> None:
        super().__init__("float64")
        self._format = format

    def linear(self, x: Any, *, weight: Any, bias: Any = None) -> Any:
        """X @ weight.T + bias."""
        return super().linear(x, weight=_meant(weight, self._format), bias=bias)


class RoundedBoth(CodedActivations):
    """The same, and activations in e4m3 with a scale per token."""

    def __init__(self, format: QuantizedFormat) -> None:
        super().__init__(None, "fp8")
        self._format = format

    def _meant(self, weight: Any) -> Any:
        return _meant(weight, self._format)


def _meant(weight: Any, format: QuantizedFormat) -> NDArray[np.float64]:
    """Return what weight[N K] becomes, which the GPU holds in bfloat16 before."""
    assert format.group is not None
    held = torch.from_numpy(np.array(weight, np.float32)).bfloat16().float()
    codes, scales, factors = (each.double().numpy() for each in round_weight(held, format))
    spread = np.repeat(scales, format.group, 1)[:, : codes.shape[1]]
    numbers: NDArray[np.float64] = (codes - 8) * spread * factors[:, None]
    return numbers


def _logits(model: Model, ops: Any, chunk: int) -> NDArray[np.float32]:
    stepper = model.with_ops(ops, num_spans=20, span_len=SPAN_LEN)
    stepper.prefill(1, TOKENS, chunk)
    return stepper.logits(1)


def _on_gpu(model: Model, format: QuantizedFormat | None) -> Any:
    from spaninfer_engine.backends.cuda.ops import CudaOps
    from spaninfer_engine.backends.cuda.weights.packing import WeightForms

    return CudaOps("bfloat16", "cuda", model.decoder.groups, weights=WeightForms(format))


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("name", ["wide llama3", "wide qwen2 7 to 1", "wide qwen3"])
def test_a_model_is_off_by_what_codes_of_activations_and_16_bits_cost(
    name: str, group: Any, load: Load
) -> None:
    """By steps of 1, 8, 64 and 256 tokens.

    Codes tip by 16 bits already, so that what they cost is compared, not where. Without codes of
    activations 0.13 of it is left, by torch on a CPU; with them 0.98 to 1.
    """
    model, format = load(name).model, QuantizedFormat(4, group, activations="e4m3")
    exact = _logits(model, RoundedWeights(format), len(TOKENS))
    coding = rms(_logits(model, RoundedBoth(format), len(TOKENS)) - exact)
    plain = _logits(model, ReferenceOps("float64"), len(TOKENS))
    rounding = rms(_logits(model, _on_gpu(model, None), len(TOKENS)) - plain)

    for chunk in (1, 8, 64, 256):
        error = rms(_logits(model, _on_gpu(model, format), chunk) - exact)
        assert 0.8 * coding < error < 1.25 * np.hypot(coding, rounding)
