"""Times of the operators on rows: one JSON record per line on standard output.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_rows.py
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import torch
from spaninfer_kernel_launch import Gpu, get_gpu, record, time_launches
from spaninfer_kernels_cuda import activation, norm, quantize, rope

ROWS = (1, 16, 64, 256, 2048, 8192)
CHANNELS, INNER, HEADS, SIZE = 3584, 18_944, 28, 128  # Qwen2.5-7B
DTYPE = ml_dtypes.bfloat16
IN_L2_BYTES = 2**27  # inputs in turn: twice what the L2 cache of an H200 holds
MAX_SETS = 20

Launch = Callable[[int, torch.Tensor], None]


def inputs(rows: int, width: int) -> list[torch.Tensor]:
    """Return arguments to be used in turn."""
    sets = min(MAX_SETS, IN_L2_BYTES // (rows * width * 2) + 1)
    return [torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]


def gated(gpu: Gpu, rows: int) -> tuple[Launch, int, int]:
    """Return the gated activation's launch, the width of its input, the bytes it moves."""
    options = activation.ActivationOptions("silu", gated=True)
    step = activation.prepare(options, rows=rows, channels=INNER, dtype=DTYPE, gpu=gpu)
    out = torch.empty(rows, INNER, device="cuda", dtype=torch.bfloat16)
    return (
        lambda stream, x: step.launch(x, out=out, stream=stream),
        2 * INNER,
        3 * rows * INNER * 2,
    )


def plain(gpu: Gpu, rows: int) -> tuple[Launch, int, int]:
    """Return the plain activation's."""
    options = activation.ActivationOptions("gelu")
    step = activation.prepare(options, rows=rows, channels=INNER, dtype=DTYPE, gpu=gpu)
    out = torch.empty(rows, INNER, device="cuda", dtype=torch.bfloat16)
    return lambda stream, x: step.launch(x, out=out, stream=stream), INNER, 2 * rows * INNER * 2


def rms(gpu: Gpu, rows: int, code: norm.Code | None = None) -> tuple[Launch, int, int]:
    """Return the RMS norm's, with residual."""
    options = norm.NormOptions("rms", residual=True, code=code)
    step = norm.prepare(options, rows=rows, channels=CHANNELS, dtype=DTYPE, gpu=gpu)
    out = torch.empty(rows, CHANNELS, device="cuda", dtype=torch.int8 if code else torch.bfloat16)
    weight = torch.ones(CHANNELS, device="cuda", dtype=torch.bfloat16)
    residual = torch.zeros(rows, CHANNELS, device="cuda", dtype=torch.bfloat16)
    scales = torch.empty(rows, device="cuda")

    def launch(stream: int, x: torch.Tensor) -> None:
        more = {"residual": residual, "scales": scales, "eps": 1e-6, "stream": stream}
        step.launch(x, weight, out=out, **more)

    return launch, CHANNELS, rows * CHANNELS * (7 if code else 8)


def rotary(gpu: Gpu, rows: int) -> tuple[Launch, int, int]:
    """Return the rotary embedding's."""
    options = rope.RopeOptions(SIZE, SIZE)
    step = rope.prepare(options, rows=rows, heads=HEADS, dtype=DTYPE, gpu=gpu)
    out = torch.empty(rows, HEADS * SIZE, device="cuda", dtype=torch.bfloat16)
    cosine, sine = torch.rand(2, rows, SIZE // 2, device="cuda")
    num_bytes = rows * (2 * HEADS * SIZE * 2 + SIZE * 4)
    return (
        lambda stream, x: step.launch(x, cosine, sine, out=out, stream=stream),
        HEADS * SIZE,
        num_bytes,
    )


def codes(gpu: Gpu, rows: int, code: norm.Code = "int8") -> tuple[Launch, int, int]:
    """Return the quantisation's."""
    step = quantize.prepare(
        quantize.QuantizeOptions(code), rows=rows, channels=CHANNELS, dtype=DTYPE, gpu=gpu
    )
    out = torch.empty(rows, CHANNELS, device="cuda", dtype=torch.int8)
    scales = torch.empty(rows, device="cuda")
    return (
        lambda stream, x: step.launch(x, out=(out, scales), stream=stream),
        CHANNELS,
        3 * rows * CHANNELS,
    )


OPERATORS: dict[str, Callable[[Gpu, int], tuple[Launch, int, int]]] = {
    "gated silu": gated,
    "gelu": plain,
    "rms norm, residual": rms,
    "rms norm, residual, int8": lambda gpu, rows: rms(gpu, rows, "int8"),
    "rms norm, residual, fp8": lambda gpu, rows: rms(gpu, rows, "fp8"),
    "rope": rotary,
    "quantize int8": codes,
    "quantize fp8": lambda gpu, rows: codes(gpu, rows, "fp8"),
}


def main() -> None:
    """Measure every operator with every number of rows."""
    gpu = get_gpu()
    for kernel, make in OPERATORS.items():
        for rows in ROWS:
            launch, width, num_bytes = make(gpu, rows)
            xs = inputs(rows, width)
            torch.cuda.synchronize()
            timing = time_launches(
                lambda stream, number, launch=launch, xs=xs: launch(stream, xs[number % len(xs)]),
                gpu,
            )
            print(record(gpu, timing, bytes_moved=num_bytes, kernel=kernel, rows=rows), flush=True)


if __name__ == "__main__":
    main()
