"""Cases of kernels that select from logits: top-k, and drawing a token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import sample, topk

from spaninfer.bench.kernels.case import Case, Launch

_TOPKS = (
    *((1, 151_936, 50), (16, 151_936, 50), (128, 151_936, 50), (64, 151_936, 1024)),
    *((1, 1 << 20, 64), (64, 1 << 20, 2048), (1, 1 << 24, 100), (1, 1 << 27, 2048)),
)
_VOCAB = 151_936
_SAMPLING = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8},
    "top-k top-p min-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
}


def topk_cases() -> Iterator[Case]:
    """The k largest of rows of normal float32."""
    for rows, length, k in _TOPKS:
        sizes = {"rows": rows, "length": length, "k": k, "dtype": "float32"}
        yield Case("topk", sizes, rows * length * 4, partial(_topk, rows, length, k))


def sample_cases() -> Iterator[Case]:
    """A token per row of logits."""
    for rows in (1, 64, 256):
        for name, sampling in _SAMPLING.items():
            sizes = {"rows": rows, "length": _VOCAB, "sampling": name, "dtype": "float32"}
            yield Case("sample", sizes, rows * _VOCAB * 4, partial(_sample, rows, sampling))


def _topk(rows: int, length: int, k: int, gpu: Gpu, sets: int) -> Launch:
    xs = torch.randn(sets, rows, length, device="cuda")
    step = topk.prepare(rows=rows, length=length, k=k, dtype=np.float32, gpu=gpu)
    indices = torch.empty(rows, k, dtype=torch.int32, device="cuda")
    out = (torch.empty(rows, k, device="cuda"), indices)
    workspace = torch.empty(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    return lambda stream, number: step.launch(
        xs[number % sets], out=out, workspace=workspace, stream=stream
    )


def _sample(rows: int, sampling: dict[str, float], gpu: Gpu, sets: int) -> Launch:
    logits = torch.randn(sets, rows, _VOCAB, device="cuda") * 3
    records = sample.defaults(rows)
    for name, value in sampling.items():
        records[name] = value
    records["seed"] = np.arange(rows)
    parameters = torch.from_numpy(records.view(np.uint8).reshape(rows, -1)).cuda()
    slots, positions, tokens, status = (
        torch.arange(rows, dtype=torch.int32, device="cuda") for _ in range(4)
    )
    step = sample.prepare(rows=rows, length=_VOCAB, dtype=np.float32, gpu=gpu)
    return lambda stream, number: step.launch(
        sample.SampleBatch(logits[number % sets], parameters, slots, positions),
        out=(tokens, status),
        stream=stream,
    )
