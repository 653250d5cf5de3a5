"""What a launch costs the host, by how it is made: one JSON record per line on standard output.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_launch.py
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from spaninfer_kernel_launch import Timing, get_gpu, record
from spaninfer_kernels_cuda import norm

LAUNCHES, REPEATS = 500, 15


def measure(how: str, launch: Callable[[], object]) -> None:
    """Print the median cost of a launch among batches that the GPU's queue can hold."""
    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(LAUNCHES):
            launch()
        times.append((perf_counter() - start) * 1e6 / LAUNCHES)
    times.sort()
    timing = Timing(times[len(times) // 2], times[0], times[-1])
    print(record(get_gpu(), timing, bytes_moved=0, kernel="launch", how=how), flush=True)


def main() -> None:
    """Measure a call, a prepared launch, the friendly function, and an operator of torch."""
    gpu, eps = get_gpu(), 1e-6
    x = torch.randn(1, 1024, device="cuda", dtype=torch.float16)
    weight, out = torch.ones_like(x[0]), torch.empty_like(x)
    step = norm.prepare(norm.Form("rms"), rows=1, channels=1024, dtype="float16", gpu=gpu)
    own = torch.cuda.Stream()
    values = (out.data_ptr(), 0, 0, x.data_ptr(), weight.data_ptr(), 0, 1024, eps, 0.0)
    default, handle = torch.cuda.current_stream().cuda_stream, own.cuda_stream
    measure("call, own stream", lambda: step.start(handle, values))
    measure("call, default stream", lambda: step.start(default, values))
    measure(
        "prepared, torch tensors",
        lambda: step.launch(x, weight, out=out, eps=eps, stream=handle),
    )
    with torch.cuda.stream(own):
        measure("friendly, out given", lambda: norm.rms_norm(x, weight, eps=eps, out=out))
        measure("friendly, new result", lambda: norm.rms_norm(x, weight, eps=eps))
        measure("torch.add", lambda: torch.add(x, x, out=out))


if __name__ == "__main__":
    main()
