"""Models with published quantised weights against the same models with dequantised ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from noise import rms, typical
from numpy.typing import NDArray
from oracle import prompt
from published import METHODS, Method, others_slow, write_experts, write_model
from stepping import Model

TOKENS = [token % 90 for token in prompt(12)]
FEW = 6  # rows of a step, at most eight: CPUs with tiles multiply more by rounded numbers
EXACT = 1e-5  # of the logits' deviation, in float32
TIPPED = 0.1  # where an activation's code tips in the first token already
GROUPS = {  # of formats that the CPU's products have: channels whose activations share a scale
    "GPTQ": 128, "GPTQ symmetric": 32, "GPTQ v2": 64, "GPTQ per row": "row", "GPTQ 2": 64,
    "GPTQ 3": 128, "GPTQ 8 symmetric": 32, "AWQ": 128, "AWQ g64": 64, "W4A16": 128,
    "W4A16 asymmetric": 32, "W8A16": 128, "W4A16 per row": "row", "3 bits": 128,
    "3 bits in whole words": 128, "6 bits": 128, "W8A8": "row", "W8A8 per tensor": "row",
    "MXFP4": 32, "bitsandbytes int8": "row", "GPTQ 8": 128,
    "NVFP4": 16, "NVFP4 of compressed-tensors": 16,
}  # fmt: skip
ON_GPUS = {  # of formats in front of which GPUs quantise activations: channels of a scale, codes
    "W8A8": "row", "W8A8 per tensor": "row", "mixed": "row", "FP8 per tensor": "row fp8",
    "FP8 per row": "row fp8", "FP8 per channel": "row fp8", "FP8 blocks": "128 fp8",
    "FP8 blocks of bfloat16": "128 fp8", "FP8 blocks of compressed-tensors": "128 fp8",
}  # fmt: skip
ROUNDED = {"NVFP4", "NVFP4 of compressed-tensors"}  # scales, to float16

FAST = ("GPTQ", "AWQ", "W4A16", "W8A8", "FP8 blocks", "NF4", "MXFP4", "mixed")
"""One of each family; its siblings differ in what tests/load/quantised compares."""

WIDTHS = (*FAST, "GPTQ 2", "GPTQ 3", "NVFP4")
SWEPT = [name for name in GROUPS if name not in WIDTHS]
"""Whose kernels differ in the size of a group or in zero points: three seconds each to compile.

tests/backends/cpu/test_cpu_quantised.py compares the numbers that they multiply by.
"""


def _mixed(name: str) -> Method | None:
    """Attention in one scheme, the MLP in two, a head that is not quantised."""
    if name == "lm_head":
        return None
    if "self_attn" in name:
        return METHODS["FP8 per channel"]
    return METHODS["W4A16" if "down" in name else "W8A8"]


_MIXED_SETTINGS = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "a": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 4}},
        "b": {"targets": ["Linear"], "weights": {"num_bits": 8}},
    },
}


def _pair(name: str, folder: Path) -> tuple[Model, Model]:
    """Return a quantised model, and one of the same numbers."""
    method_of = _mixed if name == "mixed" else lambda _: METHODS[name]
    settings = _MIXED_SETTINGS if name == "mixed" else None
    return (
        Model(write_model(folder / "quantised", method_of, settings=settings, dtype="float32")),
        Model(write_model(folder / "expanded", method_of, expanded=True, dtype="float32")),
    )


def _logits(
    model: Model, backend: str, tokens: Sequence[int] = TOKENS, chunk: int = 12, span_len: int = 4
) -> NDArray[np.float32]:
    stepper = model.on(backend, span_len=span_len)
    stepper.prefill(1, tokens, chunk=chunk)
    logits: NDArray[np.float32] = stepper.logits(1)
    return logits


@pytest.mark.parametrize("name", others_slow([*METHODS, "mixed"], FAST))
def test_a_model_computes_with_the_numbers_that_codes_stand_for(name: str, tmp_path: Path) -> None:
    quantised, expanded = _pair(name, tmp_path)

    np.testing.assert_array_equal(_logits(quantised, "reference"), _logits(expanded, "reference"))


@pytest.mark.parametrize(
    "name",
    [
        *others_slow([name for name in METHODS if name not in SWEPT], FAST),
        *(pytest.param(name, marks=pytest.mark.sweep) for name in SWEPT),
    ],
)
def test_the_cpu_multiplies_by_codes_where_it_can_and_else_by_numbers(
    name: str, tmp_path: Path
) -> None:
    quantised, expanded = _pair(name, tmp_path)

    logits = _logits(quantised, "cpu", chunk=FEW)

    if name not in GROUPS:
        np.testing.assert_array_equal(logits, _logits(expanded, "cpu", chunk=FEW))
        return
    exact = _logits(expanded, f"reference activations {GROUPS[name]}")
    difference = logits - exact
    assert rms(difference) < TIPPED * exact.std()
    if name not in ROUNDED:  # sums in another order tip an activation's code now and then
        assert min(map(rms, difference)) < EXACT * exact.std()


@pytest.mark.parametrize("name", ["GPTQ reordered", "mixed"])
def test_torch_computes_with_them_too(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    quantised, expanded = _pair(name, tmp_path)

    np.testing.assert_array_equal(_logits(quantised, "torch"), _logits(expanded, "torch"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*METHODS, "mixed"])
def test_backend_cuda_is_as_near_with_codes_as_with_their_numbers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    quantised, expanded = _pair(name, tmp_path)
    tokens = [token % 90 for token in prompt(100)]
    exact = _logits(expanded, "reference", tokens, chunk=100)
    coding = 0.0  # the error that the definition has where activations are quantised
    if name in ON_GPUS:
        meant = _logits(expanded, f"reference activations {ON_GPUS[name]}", tokens, chunk=100)
        coding = rms(meant - exact)

    for chunk in (1, 9, 100):
        error, rounding = (
            rms(_logits(model, f"cuda {dtype}", tokens, chunk, span_len=16) - exact)
            for model in (quantised, expanded)
        )
        assert error < 1.5 * np.hypot(coding, rounding)


EXPERTS = ("GPTQ", "AWQ", "W4A16", "W8A16", "W8A8", "FP8 blocks", "FP8 per row", "NVFP4", "MXFP4")
"""Methods by which experts are published, and kernels multiply by; as well as the first of others,
which are expanded.
"""


def _pair_of_experts(name: str, folder: Path) -> tuple[Model, Model]:
    quantised, expanded = (
        Model(write_experts(folder / str(each), METHODS[name], expanded=each, dtype="float32"))
        for each in (False, True)
    )
    return quantised, expanded


@pytest.mark.parametrize("name", others_slow([*EXPERTS, "NF4", "GPTQ reordered"], ("GPTQ", "AWQ")))
def test_experts_compute_with_the_numbers_that_codes_stand_for(name: str, tmp_path: Path) -> None:
    quantised, expanded = _pair_of_experts(name, tmp_path)

    np.testing.assert_array_equal(_logits(quantised, "reference"), _logits(expanded, "reference"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", [*EXPERTS, "NF4", "GPTQ reordered"])
def test_backend_cuda_is_as_near_with_codes_of_experts_as_with_their_numbers(
    name: str, dtype: str, tmp_path: Path
) -> None:
    """By few tokens and many; typical rows, because a few choose other experts for a rounding."""
    quantised, expanded = _pair_of_experts(name, tmp_path)
    tokens = [token % 90 for token in prompt(100)]
    exact = _logits(expanded, "reference", tokens, chunk=100)

    for chunk in (1, 9, 100):
        error, rounding = (
            typical(_logits(model, f"cuda {dtype}", tokens, chunk, span_len=16) - exact)
            for model in (quantised, expanded)
        )
        assert error < 1.5 * rounding
