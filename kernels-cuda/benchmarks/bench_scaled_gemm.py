"""Times of GEMMs of 8-bit codes with scales, beside torch's: one JSON record per line.

For every GEMM of a layer of Qwen2.5-7B and numbers of rows from 1 to 8192: FP8 and int8 with a
scale per row, FP8 with scales of blocks, torch's `_scaled_mm` of the same FP8, and bfloat16 by
torch, and by our small-M GEMM where it is faster than cuBLAS. All run inside CUDA graphs, weights
in turn, so that the L2 cache does not hold them where memory allows. `tflops` counts two
operations per GEMM.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_scaled_gemm.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import ml_dtypes
import torch
from bench_gemm import COLD_BYTES, MODELS, Work, time_graph
from spaninfer_kernel_launch import get_gpu, record
from spaninfer_kernels_cuda import gemm, scaled_gemm
from spaninfer_kernels_cuda.scaled_gemm import BLOCK, Codes, Shape

ROWS = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
KINDS = {"fp8": Codes("fp8"), "int8": Codes("int8"), "fp8_blocks": Codes("fp8", "blocks")}
Kind = tuple[str, Sequence[Work]]


def codes(kind: Codes, *shape: int) -> torch.Tensor:
    """Return codes of normal numbers."""
    x = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=40)
    if kind.code == "fp8":
        return x.to(torch.float8_e4m3fn)
    return x.round_().clamp_(-127, 127).to(torch.int8)


def scales(*shape: int) -> torch.Tensor:
    """Return small positive scales."""
    return torch.rand(shape, device="cuda") / 1000


def ours(shape: Shape, kind: Codes, copies: int) -> list[Work]:
    """Return our GEMMs, each with a weight of its own."""
    step = scaled_gemm.prepare(shape, kind, dtype=ml_dtypes.bfloat16, gpu=get_gpu())
    x, weights = (
        codes(kind, shape.rows, shape.inner),
        codes(kind, copies, shape.outputs, shape.inner),
    )
    of_x, of_weight = scales(shape.rows), scales(shape.outputs)
    if kind.scales == "blocks":
        blocks = -(-shape.inner // BLOCK)
        of_x, of_weight = scales(blocks, shape.rows), scales(-(-shape.outputs // BLOCK), blocks)
    out = torch.empty(shape.rows, shape.outputs, dtype=torch.bfloat16, device="cuda")
    workspace = torch.zeros(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    given = {"out": out, "workspace": workspace, "x_scales": of_x, "weight_scales": of_weight}
    return [partial(step.launch, x, weight, **given) for weight in weights]


def of_torch(shape: Shape, copies: int) -> list[Work]:
    """Return torch's GEMMs of FP8 with a scale per row."""
    kind = KINDS["fp8"]
    x, weights = (
        codes(kind, shape.rows, shape.inner),
        codes(kind, copies, shape.outputs, shape.inner),
    )
    of_x, of_weight = scales(shape.rows, 1), scales(1, shape.outputs)
    multiply: Callable[..., object] = partial(
        torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return [partial(multiply, x, weight.T, of_x, of_weight) for weight in weights]


def of_floats(shape: Shape, copies: int) -> Iterator[Kind]:
    """Yield torch's GEMMs of bfloat16, and ours where it is faster."""
    x = torch.empty(shape.rows, shape.inner, dtype=torch.bfloat16, device="cuda").normal_()
    weights = torch.empty(
        (copies, shape.outputs, shape.inner), dtype=torch.bfloat16, device="cuda"
    ).normal_()
    yield "bfloat16", [partial(torch.nn.functional.linear, x, weight) for weight in weights]
    gpu = get_gpu()
    if not gemm.is_faster(shape, gpu.arch, gated=False):
        return
    step = gemm.prepare(shape, dtype=ml_dtypes.bfloat16, gpu=gpu)
    out = torch.empty(shape.rows, shape.outputs, dtype=torch.bfloat16, device="cuda")
    workspace = torch.zeros(step.workspace_bytes, dtype=torch.uint8, device="cuda")
    launch = partial(step.launch, x, out=out, workspace=workspace)
    yield "bfloat16_ours", [partial(launch, weight) for weight in weights]


def kinds_of(shape: Shape, copies: int) -> Iterator[Kind]:
    """Yield every kind of GEMM of a shape."""
    for name, kind in KINDS.items():
        yield name, ours(shape, kind, copies)
    yield "torch_fp8", of_torch(shape, copies)
    yield from of_floats(shape, max(2, copies // 2))


def main() -> None:
    """Measure every GEMM of a layer at every number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    asked = parser.parse_args()
    model = MODELS[0]
    layer = {name: sizes for name, sizes in model.gemms.items() if name != "head"}
    for rows in asked.rows:
        for name, (outputs, inner) in layer.items():
            copies = max(2, min(24, COLD_BYTES // (outputs * inner)) if rows <= 512 else 2)
            for kernel, works in kinds_of(Shape(rows, outputs, inner), copies):
                timing = time_graph(works)
                line = record(
                    *(get_gpu(), timing),
                    bytes_moved=outputs * inner * (2 if kernel.startswith("bfloat16") else 1),
                    kernel=kernel,
                    model=model.name,
                    product=name,
                    rows=rows,
                    outputs=outputs,
                    inner=inner,
                    tflops=round(2e-6 * rows * outputs * inner / timing.us, 1),
                )
                print(line, flush=True)


if __name__ == "__main__":
    main()
