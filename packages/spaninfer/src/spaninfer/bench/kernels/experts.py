"""Cases of the two GEMMs of an expert layer, by three models' shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import grouped_gemm

from spaninfer.bench.kernels.case import Case, Launch

_ITEM_BYTES = 2
_TOKENS = (8, 64, 512, 4096, 16_384)
_FLOPS_OF_BYTE = 790e12 / 4.3e12  # beyond, an H200 multiplies longer than it reads


@dataclass(frozen=True, slots=True)
class _Layer:
    experts: int
    chosen: int
    hidden: int
    inner: int


_LAYERS = {
    "qwen3-30b-a3b": _Layer(128, 8, 2048, 768),
    "deepseek-v2-lite": _Layer(64, 6, 2048, 1408),
    "mixtral-8x7b": _Layer(8, 2, 4096, 14_336),
}


def expert_cases() -> Iterator[Case]:
    """Gates and up, then down, of tokens that choose their experts at random."""
    for model, layer in _LAYERS.items():
        for tokens in _TOKENS:
            active = int((_counts(_choices(layer, tokens), layer) > 0).sum())
            for product in ("gate and up", "down"):
                shape, gathers = _shape(layer, tokens, product), product != "down"
                columns = shape.outputs // 2 if gathers else shape.outputs
                read = active * shape.outputs * shape.inner
                rows = tokens if gathers else shape.rows
                num_bytes = _ITEM_BYTES * (read + rows * shape.inner + shape.rows * columns)
                flops = 2 * shape.rows * shape.outputs * shape.inner
                yield Case(
                    "grouped_gemm",
                    {"model": model, "product": product, "tokens": tokens, "dtype": "bfloat16"},
                    num_bytes,
                    partial(_launch, layer, tokens, product),
                    flops if flops > _FLOPS_OF_BYTE * num_bytes else 0,
                )


def _shape(layer: _Layer, tokens: int, product: str) -> grouped_gemm.Shape:
    wide = (layer.hidden, layer.inner) if product == "down" else (2 * layer.inner, layer.hidden)
    return grouped_gemm.Shape(tokens * layer.chosen, layer.chosen, layer.experts, *wide)


def _choices(layer: _Layer, tokens: int) -> NDArray[np.int64]:
    """Different experts for each token, [T k], each as likely as any other."""
    drawn = np.random.default_rng(tokens).random((tokens, layer.experts))
    return np.argpartition(drawn, layer.chosen - 1, axis=1)[:, : layer.chosen]


def _counts(choices: NDArray[np.int64], layer: _Layer) -> NDArray[np.int64]:
    return np.bincount(choices.ravel(), minlength=layer.experts)


def _launch(layer: _Layer, tokens: int, product: str, gpu: Gpu, sets: int) -> Launch:
    shape, gathers = _shape(layer, tokens, product), product != "down"
    choices = _choices(layer, tokens)
    ends = _on_gpu(np.cumsum(_counts(choices, layer)))
    order = _on_gpu(np.argsort(choices.ravel(), kind="stable")) if gathers else None
    weights = _random(sets, layer.experts, shape.outputs, shape.inner)
    x = _random(tokens if gathers else shape.rows, shape.inner)
    columns = shape.outputs // 2 if gathers else shape.outputs
    out = torch.empty(shape.rows, columns, dtype=x.dtype, device="cuda")
    step = grouped_gemm.prepare(
        shape,
        dtype=ml_dtypes.bfloat16,
        gpu=gpu,
        gate="silu" if gathers else None,
        gathers=gathers,
    )
    workspace = torch.empty(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    ticket = torch.zeros(1, dtype=torch.int32, device="cuda")

    def launch(stream: int, number: int) -> None:
        memory = {"workspace": workspace, "ticket": ticket}
        step.launch(x, weights[number % sets], ends, out=out, order=order, stream=stream, **memory)

    return launch


def _on_gpu(numbers: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(numbers.astype(np.int32)).cuda()


def _random(*shape: int) -> torch.Tensor:
    spread = shape[-1] ** -0.5
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=spread)
