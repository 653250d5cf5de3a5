"""Weights rounded to 8-bit codes, a scale per row, as llm-compressor publishes them.

The format compressed-tensors: `weight` e4m3 or int8 [N K], `weight_scale` float32 [N 1], and
activations that are rounded to the same codes, each token by itself. Both are also what backend
cuda rounds weights to while loading (`--quantize fp8`, `w8a8`), to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import quantize_rows

Scheme = Literal["fp8", "w8a8"]
SCHEMES: tuple[Scheme, ...] = ("fp8", "w8a8")

CODES: dict[Scheme, np.dtype] = {
    "fp8": np.dtype(ml_dtypes.float8_e4m3fn),
    "w8a8": np.dtype(np.int8),
}
SCALE = np.dtype(np.float32)

_FORMATS = {"fp8": "float-quantized", "w8a8": "int-quantized"}
_LARGEST_E4M3 = np.float32(448)


def round_rows(
    weight: NDArray[Any], scheme: Scheme
) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """Return the codes [N K] of a weight[N K] in CODES, and its scales [N 1].

    The largest number of a row becomes the largest code. Scales and quotients are rounded to
    float32, those to the nearest code, ties to even.
    """
    numbers = weight.astype(np.float32)
    if scheme == "w8a8":
        return quantize_rows(numbers)
    scales = np.abs(numbers).max(1, keepdims=True) / _LARGEST_E4M3
    scales = np.where(scales == 0, np.float32(1), scales)
    return (numbers / scales).astype(CODES[scheme]), scales


def settings_of(scheme: Scheme, ignored: Iterable[str]) -> dict[str, Any]:
    """Return the `quantization_config` of a model of such weights, but for the modules ignored."""
    kind = {"num_bits": 8, "type": "float" if scheme == "fp8" else "int", "symmetric": True}
    weights = {**kind, "strategy": "channel", "dynamic": False}
    activations = {**kind, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[scheme],
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": sorted(ignored),
    }
