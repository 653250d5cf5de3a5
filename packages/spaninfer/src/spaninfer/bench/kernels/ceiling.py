"""The ceilings: how fast this GPU reads and copies memory, and multiplies matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from spaninfer_kernel_launch import (
    Call,
    Gpu,
    Int64,
    Launch,
    Pointer,
    Signature,
    Source,
    Variant,
    compile_variant,
    load,
    time_launches,
    user_cache,
)

from spaninfer.bench.kernels.case import Ceilings

MAX_BYTES = 4 << 30  # what a cache of 64 MiB still holds of the pass before is 2 % of it
SIDE = 8192  # of the matrices


class PassArguments(NamedTuple):
    """Arguments of a pass over memory."""

    x: Pointer
    packs: Int64
    out: Pointer


_SIGNATURES = {entry: Signature(entry, PassArguments) for entry in ("read_all", "copy_all")}
_SOURCE = Source("spaninfer.bench.kernels", "ceiling.cu", kernels=tuple(_SIGNATURES.values()))
_BYTES_PER_PACK = 16
_PER_THREAD = 4  # packs
_WARM_UP, _REPEATS = 3, 20  # GEMMs that do not count, and that do

# The fastest of 256, 512 and 1024 threads with 2, 4 and 8 packs each: 4625 GB/s read, 4254 copied,
# where torch's sum reads 4337 and its copy copies 4275 (H200, 2026-11-21).
_THREADS = {"read_all": 256, "copy_all": 1024}

VARIANTS = tuple(
    Variant.of(entry, _SOURCE, {"THREADS": threads, "PER_THREAD": _PER_THREAD})
    for entry, threads in _THREADS.items()
)


def measure_ceilings(gpu: Gpu) -> Ceilings:
    """Return what reading and copying gibibytes and a GEMM of bfloat16 matrices give."""
    free, _ = torch.cuda.mem_get_info()
    num_bytes = min(MAX_BYTES, free // 4) // _BYTES_PER_PACK * _BYTES_PER_PACK
    x = torch.randint(0, 1 << 30, (num_bytes // 4,), dtype=torch.int32, device="cuda")
    y = torch.empty_like(x)
    read, copy = (_gbps(variant, gpu, x, y) for variant in VARIANTS)
    return Ceilings(read, 2 * copy, _tflops())


def records(ceilings: Ceilings) -> Iterator[dict[str, Any]]:
    """Yield the ceilings as fields of records."""
    for name, unit, value in (
        ("read", "GB/s", ceilings.read_gbps),
        ("copy", "GB/s", ceilings.copy_gbps),
        (f"product of {SIDE} x {SIDE} x {SIDE} in bfloat16", "TFLOP/s", ceilings.tflops),
    ):
        shown = round(value, 1)
        yield {
            "benchmark": "ceiling",
            "ceiling": name,
            "unit": unit,
            **dict.fromkeys(("median", "least", "most"), shown),
        }


def _gbps(variant: Variant, gpu: Gpu, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return gigabytes of x per second that a kernel takes in."""
    compiled = compile_variant(variant, gpu.arch, user_cache())
    kernel = load(compiled, gpu, _SIGNATURES[variant.entry])
    packs, threads = x.nbytes // _BYTES_PER_PACK, _THREADS[variant.entry]
    blocks = -(-packs // (threads * _PER_THREAD))
    call = Call(kernel, Launch((blocks, 1, 1), (threads, 1, 1)))
    arguments = PassArguments(x.data_ptr(), packs, y.data_ptr())
    torch.cuda.synchronize()
    timing = time_launches(lambda stream, _: call(stream, arguments), gpu, launches=4)
    return x.nbytes / timing.us / 1e3


def _tflops() -> float:
    """Return the rate of a large GEMM of random numbers: zeros would draw less power."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * SIDE**3 / _microseconds(lambda: torch.mm(a, b, out=out)) / 1e6


def _microseconds(work: Callable[[], object]) -> float:
    """Return the median time of torch's work on its current stream."""
    times: list[float] = []
    for _ in range(_WARM_UP + _REPEATS):
        before, after = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(1e3 * before.elapsed_time(after))
    return median(times[_WARM_UP:])
