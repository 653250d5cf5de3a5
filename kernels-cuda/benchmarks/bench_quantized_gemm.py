"""Times of GEMMs with quantised weights beside cuBLAS's with bfloat16: one JSON record per line.

The GEMMs of a layer of Qwen2.5-7B and one of 8192 x 8192, with codes of 4 bits in groups of 128,
for x in 16 bits and in FP8, and of 8 bits per row. All run inside CUDA graphs, weights in turn, so
that the L2 cache does not hold them. `limit_us` is what an H200 takes at least: for the bytes at
4.3 TB/s, or for the arithmetic at 790 TFLOP/s, 1,400 of FP8. Where tokens are so many that the
engine dequantises first, that is timed with cuBLAS; cuBLAS's own time has no activation in it.

Needs torch and a GPU: python kernels-cuda/benchmarks/bench_quantized_gemm.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import ml_dtypes
import torch
from spaninfer_kernel_launch import get_gpu, record, time_launches
from spaninfer_kernels_cuda import quantized_gemm
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, Shape

TOKENS = (1, 8, 16, 32, 64, 128, 256, 1024, 4096)
GEMMS: dict[str, tuple[int, int, Act | None]] = {
    "qkv": (4608, 3584, None),
    "attention_output": (3584, 3584, None),
    "gate_up": (2 * 18_944, 3584, "silu"),
    "down": (3584, 18_944, None),
    "square": (8192, 8192, None),
}
FORMATS = {
    "int4 g128": QuantizedFormat(4, 128),
    "int4 g128, x in fp8": QuantizedFormat(4, 128, activations="e4m3"),
    "int8 per row": QuantizedFormat(8, None),
}
COLD_BYTES = 150 << 20  # of weights in turn
BYTES_PER_US = 4.3e6
FLOP_PER_US = {"floats": 790e6, "e4m3": 1400e6}
BFLOAT16 = ml_dtypes.bfloat16
X_TYPES = {"floats": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


class Codes:
    """A GEMM of one format for so many tokens, with weights in turn."""

    def __init__(self, name: str, format: QuantizedFormat, tokens: int) -> None:
        outputs, inner, gate = GEMMS[name]
        self.shape, gpu = Shape(tokens, outputs, inner), get_gpu()
        sizes = format.records(outputs, inner)
        self.num_bytes = sizes[0] * sizes[1] * sizes[2]
        count = max(2, COLD_BYTES // self.num_bytes)
        self.records = torch.randint(0, 256, (count, *sizes), dtype=torch.uint8, device="cuda")
        if format.group is not None:
            self.records[..., format.code_bytes :].view(torch.float16).fill_(0.01)
        self.factors = torch.full((sizes[0] * quantized_gemm.BLOCK_ROWS,), 0.01, device="cuda")
        self.x = torch.randn(tokens, inner, device="cuda").to(X_TYPES[format.activations])
        self.x_scales = torch.full((tokens,), 0.01, device="cuda")
        columns = outputs // 2 if gate else outputs
        self.out = torch.empty(tokens, columns, dtype=torch.bfloat16, device="cuda")
        self.gemm = quantized_gemm.prepare(self.shape, format, dtype=BFLOAT16, gpu=gpu, gate=gate)
        self.workspace = torch.zeros(self.gemm.workspace_bytes, dtype=torch.uint8, device="cuda")
        if format.activations == "floats":
            self.dense = torch.empty(outputs, inner, dtype=torch.bfloat16, device="cuda")
            self.to_dense = quantized_gemm.prepare_dequantize(
                *(outputs, inner, format), dtype=BFLOAT16, gpu=gpu, gated=gate is not None
            )

    def multiply(self, stream: int, number: int) -> None:
        """Multiply by the codes of weight `number`, in turn."""
        self.gemm.launch(
            self.x.data_ptr(),
            self.records[number % len(self.records)].data_ptr(),
            self.factors.data_ptr(),
            out=self.out.data_ptr(),
            workspace=self.workspace.data_ptr(),
            x_scales=self.x_scales.data_ptr(),
            stream=stream,
        )

    def dequantize(self, stream: int, number: int) -> None:
        """Make weight `number` dense, in turn."""
        records = self.records[number % len(self.records)].data_ptr()
        self.to_dense.launch(records, self.factors.data_ptr(), out=self.dense, stream=stream)


def time_dense(name: str, tokens: int) -> float:
    """Return the microseconds of cuBLAS's GEMM, weights in turn."""
    outputs, inner, _ = GEMMS[name]
    count = max(2, COLD_BYTES // (2 * outputs * inner))
    weights = torch.randn(count, outputs, inner, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(tokens, inner, dtype=torch.bfloat16, device="cuda")

    def launch(stream: int, number: int) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):  # type: ignore[no-untyped-call]
            torch.nn.functional.linear(x, weights[number % count])

    torch.nn.functional.linear(x, weights[0])
    return timed(launch)


def timed(launch: Callable[[int, int], None]) -> float:
    """Return the median microseconds of a launch."""
    return time_launches(launch, get_gpu(), launches=12, replays=9).us


def main() -> None:
    """Print a record per GEMM, format and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    gpu = get_gpu()
    for tokens in parser.parse_args().tokens:
        for name, (outputs, inner, gate) in GEMMS.items():
            dense_us = time_dense(name, tokens)
            for label, format in FORMATS.items():
                case = Codes(name, format, tokens)
                is_direct = quantized_gemm.is_faster(
                    *(case.shape, format, ml_dtypes.bfloat16, gpu.arch), gated=gate is not None
                )
                timing = time_launches(
                    case.multiply if is_direct else case.dequantize, gpu, launches=12, replays=9
                )
                flop = 2 * tokens * outputs * inner
                limit = max(case.num_bytes / BYTES_PER_US, flop / FLOP_PER_US[format.activations])
                fields = {"product": name, "format": label, "rows": tokens, "outputs": outputs}
                fields |= {"inner": inner, "kernel": "codes" if is_direct else "dequantize"}
                fields |= {"cublas_us": round(dense_us, 2), "limit_us": round(limit, 2)}
                print(record(gpu, timing, bytes_moved=case.num_bytes, **fields), flush=True)


if __name__ == "__main__":
    main()
