"""Times of top-k beside torch.topk's in the same run: one JSON record per line on standard output.

Both run inside CUDA graphs, over enough inputs in turn that the L2 cache does not hold them all
where memory allows. Needs torch and a GPU: python kernels-cuda/benchmarks/bench_topk.py
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
import torch
from spaninfer_kernel_launch import Timing, get_gpu, record, time_launches
from spaninfer_kernels_cuda import topk

SIZES = (
    *((1, 151_936, 50), (16, 151_936, 50), (128, 151_936, 50), (256, 151_936, 50)),
    *((64, 151_936, 1024), (1, 131_072, 2048), (64, 32_768, 2048), (128, 65_536, 2048)),
    *((256, 16_384, 50), (1, 1 << 20, 64), (64, 1 << 20, 2048)),
    *((1, 1 << 24, 100), (1, 1 << 27, 2048)),
)
ADVERSE = ((1, 151_936, 50), (64, 151_936, 1024), (1, 1 << 24, 100))
KINDS = (
    "normal",
    "rising",
    "falling",
    "constant",
    "few values",
    "one digit",
    "outlier",
    "infinite",
)
LAUNCHES, REPLAYS = 20, 15


def inputs(kind: str, rows: int, length: int) -> torch.Tensor:
    """Return rows[rows length] of float32 with a distribution that selection may find hard."""
    x = torch.randn(rows, length, device="cuda")
    match kind:
        case "rising":
            x = x.sort(dim=1).values
        case "falling":
            x = x.sort(dim=1, descending=True).values
        case "constant":
            x.fill_(0.25)
        case "few values":
            x = torch.randint(0, 4, (rows, length), device="cuda").float()
        case "one digit":
            x = 1 + x * 1e-6
        case "outlier":
            x *= 1e-30
            x[:, length // 3] = torch.inf
        case "infinite":
            x = torch.where(x > 1, torch.inf, torch.where(x < 0, -torch.inf, x))
    return x


def ours(xs: list[torch.Tensor], k: int) -> Timing:
    """Return the time of one launch, inputs in turn."""
    rows, length = xs[0].shape
    gpu = get_gpu()
    step = topk.prepare(rows=rows, length=length, k=k, dtype=np.float32, gpu=gpu)
    out = (
        torch.empty(rows, k, device="cuda"),
        torch.empty(rows, k, dtype=torch.int32, device="cuda"),
    )
    workspace = torch.empty(step.workspace_bytes, dtype=torch.uint8, device="cuda")

    def launch(stream: int, number: int) -> None:
        step.launch(xs[number % len(xs)], out=out, workspace=workspace, stream=stream)

    torch.cuda.synchronize()
    return time_launches(launch, gpu, launches=LAUNCHES, replays=REPLAYS)


def theirs(xs: list[torch.Tensor], k: int) -> Timing:
    """Return the time of one torch.topk, inputs in turn."""
    torch.topk(xs[0], k)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(LAUNCHES):
            torch.topk(xs[number % len(xs)], k)
    times = []
    for _ in range(REPLAYS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(1e3 * before.elapsed_time(after) / LAUNCHES)
    return Timing(median(times), min(times), max(times))


def measure(kind: str, rows: int, length: int, k: int, *, with_torch: bool) -> None:
    """Print the record of ours, and that of torch where asked for."""
    num_bytes = rows * length * 4
    num_inputs = max(1, min(LAUNCHES, (4 * get_gpu().l2_bytes) // num_bytes))
    xs = [inputs(kind, rows, length) for _ in range(num_inputs)]
    sizes = {"rows": rows, "length": length, "k": k, "dtype": "float32", "inputs": kind}
    peers = (("topk", ours), ("torch.topk", theirs)) if with_torch else (("topk", ours),)
    for kernel, timed in peers:
        timing = timed(xs, k)
        line = record(
            *(get_gpu(), timing),
            bytes_moved=num_bytes,
            kernel=kernel,
            **sizes,
            input_sets=num_inputs,
        )
        print(line, flush=True)


def measure_ceiling() -> None:
    """Print how fast memory is read (a sum) and copied by torch, as records of this run."""
    x = torch.randn(1 << 29, device="cuda")
    y = torch.empty_like(x)
    for kernel, work, factor in (("sum", lambda: x.sum(), 1), ("copy", lambda: y.copy_(x), 2)):
        times = []
        for _ in range(REPLAYS):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            work()
            after.record()
            torch.cuda.synchronize()
            times.append(1e3 * before.elapsed_time(after))
        timing = Timing(median(times), min(times), max(times))
        num_bytes = factor * x.numel() * 4
        print(record(get_gpu(), timing, bytes_moved=num_bytes, kernel=kernel), flush=True)


def main() -> None:
    """Measure every size, then the hard inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-torch", action="store_true", help="time only our kernel")
    asked = parser.parse_args()
    measure_ceiling()
    for sizes in SIZES:
        measure("normal", *sizes, with_torch=not asked.without_torch)
    for sizes in ADVERSE:
        for kind in KINDS:
            measure(kind, *sizes, with_torch=False)


if __name__ == "__main__":
    main()
