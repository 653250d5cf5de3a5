"""Cases of kernels that go over rows once: norm, gated activation, and GEMMs of few rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import ml_dtypes
import torch
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import activation, gemm, norm
from spaninfer_kernels_cuda.gemm import Shape

from spaninfer.bench.kernels.case import Case, Launch

_ROWS = (1, 64, 256, 8192)
_HIDDEN, _INNER = 3584, 18_944  # of qwen2.5-7b
_PRODUCTS = {
    "qkv": (4608, 3584),
    "attention output": (3584, 3584),
    "gate and up": (2 * 18_944, 3584),
    "down": (3584, 18_944),
    "head": (152_064, 3584),
}
_PRODUCT_ROWS = (1, 8, 32, 64, 128, 256)
_ITEM_BYTES = 2


def norm_cases() -> Iterator[Case]:
    """RMS norm with the residual added, as between two layers."""
    for rows in _ROWS:
        sizes = {"rows": rows, "channels": _HIDDEN, "dtype": "bfloat16"}
        yield Case("norm", sizes, 4 * rows * _HIDDEN * _ITEM_BYTES, partial(_norm, rows))


def activation_cases() -> Iterator[Case]:
    """silu(gate) * up of halves side by side."""
    for rows in _ROWS:
        sizes = {"rows": rows, "channels": _INNER, "dtype": "bfloat16"}
        yield Case("activation", sizes, 3 * rows * _INNER * _ITEM_BYTES, partial(_activation, rows))


def gemm_cases() -> Iterator[Case]:
    """GEMMs of few rows with a layer's weights."""
    for name, (outputs, inner) in _PRODUCTS.items():
        for rows in _PRODUCT_ROWS:
            sizes = {"product": name, "rows": rows, "dtype": "bfloat16"}
            num_bytes = (outputs * inner + rows * (inner + outputs)) * _ITEM_BYTES
            yield Case("gemm", sizes, num_bytes, partial(_gemm, Shape(rows, outputs, inner)))


def _norm(rows: int, gpu: Gpu, sets: int) -> Launch:  # noqa: ARG001
    xs, sums = (_random(sets, rows, _HIDDEN) for _ in range(2))
    weight, out = _random(_HIDDEN), torch.empty_like(xs[0])

    def launch(stream: int, number: int) -> None:
        x, residual = xs[number % sets], sums[number % sets]
        norm.rms_norm(x, weight, eps=1e-6, residual=residual, out=out, stream=stream)

    return launch


def _activation(rows: int, gpu: Gpu, sets: int) -> Launch:  # noqa: ARG001
    xs, out = _random(sets, rows, 2 * _INNER), _random(rows, _INNER)

    def launch(stream: int, number: int) -> None:
        activation.gated(xs[number % sets], "silu", out=out, stream=stream)

    return launch


def _gemm(shape: Shape, gpu: Gpu, sets: int) -> Launch:
    weights, x = _random(sets, shape.outputs, shape.inner), _random(shape.rows, shape.inner)
    out = torch.empty(shape.rows, shape.outputs, dtype=x.dtype, device="cuda")
    step = gemm.prepare(shape, dtype=ml_dtypes.bfloat16, gpu=gpu)
    workspace = torch.zeros(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    return lambda stream, number: step.launch(
        x, weights[number % sets], out=out, workspace=workspace, stream=stream
    )


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")
