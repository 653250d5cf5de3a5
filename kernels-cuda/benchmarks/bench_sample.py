"""Times of sampling: one JSON record per line on standard output.

Launches run inside CUDA graphs, over enough inputs in turn that the L2 cache does not hold them.
Needs torch and a GPU: python kernels-cuda/benchmarks/bench_sample.py
"""

from __future__ import annotations

import argparse

import ml_dtypes
import numpy as np
import torch
from spaninfer_kernel_launch import Timing, get_gpu, record, time_launches
from spaninfer_kernels_cuda import sample

VOCAB = 151_936
ROWS = (1, 16, 32, 64, 128, 256)
LAUNCHES, REPLAYS = 20, 15
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8}
TRUNCATED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}  # the row of the targets
REQUESTS: dict[str, tuple[dict[str, float], ...]] = {
    "greedy": (GREEDY,),
    "temperature": (SAMPLED,),
    "top-k, top-p, min-p": (TRUNCATED,),
    "top-k 1024": ({"top_k": 1024},),
    "top-p": ({"top_p": 0.9},),
    "top-p 0.999": ({"top_p": 0.999},),
    "min-p": ({"min_p": 0.05},),
    "mixed": (GREEDY, SAMPLED, TRUNCATED, {"min_p": 0.05}, GREEDY, {"top_k": 50}),
}
KINDS = ("normal", "like a model's", "peaked", "wide", "constant")


def inputs(kind: str, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Return logits[rows VOCAB]: flat, with few or very few likely tokens, wide, all equal."""
    x = torch.randn(rows, VOCAB, device="cuda")
    match kind:
        case "like a model's":
            x *= 2
            x[:, torch.randint(0, VOCAB, (40,), device="cuda")] += torch.linspace(8, 18, 40).cuda()
        case "wide":
            x *= 3
        case "peaked":
            x *= 2
            x[:, torch.randint(0, VOCAB, (8,), device="cuda")] += 10
        case "constant":
            x.fill_(0.5)
    return x.to(dtype)


def timed(xs: list[torch.Tensor], requests: tuple[dict[str, float], ...]) -> Timing:
    """Return the time of one launch, inputs in turn, rows taking the requests in turn."""
    gpu, rows = get_gpu(), xs[0].shape[0]
    dtype = np.float32 if xs[0].dtype == torch.float32 else ml_dtypes.bfloat16
    step = sample.prepare(rows=rows, length=VOCAB, dtype=dtype, gpu=gpu)
    records = sample.defaults(rows)
    records["seed"] = np.arange(rows)
    for row in range(rows):
        for name, value in requests[row % len(requests)].items():
            records[name][row] = value
    parameters = torch.from_numpy(records.view(np.uint8).reshape(rows, -1)).cuda()
    slots = torch.arange(rows, dtype=torch.int32, device="cuda")
    out, status = torch.empty_like(slots), torch.empty_like(slots)

    def launch(stream: int, number: int) -> None:
        step.launch(
            sample.SampleBatch(xs[number % len(xs)], parameters, slots, positions=slots),
            out=(out, status),
            stream=stream,
        )

    torch.cuda.synchronize()
    return time_launches(launch, gpu, launches=LAUNCHES, replays=REPLAYS)


def main() -> None:
    """Measure every request over batch sizes, then over distributions, then in bfloat16."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    cases = [(name, rows, "normal", torch.float32) for name in REQUESTS for rows in ROWS]
    cases += [(name, 64, kind, torch.float32) for name in REQUESTS for kind in KINDS[1:]]
    cases += [(name, 64, "normal", torch.bfloat16) for name in REQUESTS]
    for name, rows, kind, dtype in cases:
        num_bytes = rows * VOCAB * dtype.itemsize
        num_inputs = max(1, min(LAUNCHES, 4 * get_gpu().l2_bytes // num_bytes))
        xs = [inputs(kind, rows, dtype) for _ in range(num_inputs)]
        line = record(
            *(get_gpu(), timed(xs, REQUESTS[name])),
            bytes_moved=num_bytes,
            kernel="sample",
            asked=name,
            rows=rows,
            length=VOCAB,
            dtype=str(dtype).removeprefix("torch."),
            inputs=kind,
            input_sets=num_inputs,
        )
        print(line, flush=True)


if __name__ == "__main__":
    main()
