"""One launch to be timed: what it is about, the bytes and operations it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from spaninfer_kernel_launch import Gpu, time_launches

LAUNCHES = 20  # in a graph: gaps between launches are not what is measured
REPLAYS = 15

_INPUT_BYTES = 16 << 30  # of all input sets at most

Launch: TypeAlias = Callable[[int, int], None]  # (stream, number of the launch)


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel at a size.

    `make` takes how many sets of inputs there are to be, and returns what launches the kernel on
    one of them; launches take the sets in turn, so that the L2 cache does not hold their inputs.
    """

    kernel: str
    sizes: Mapping[str, object]
    num_bytes: int  # read and written, each once
    make: Callable[[Gpu, int], Launch]
    flops: int = 0  # 0: bound by bytes


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured limits of this GPU: bytes read and copied per second, bfloat16 FLOP/s."""

    read_gbps: float
    copy_gbps: float
    tflops: float


def timed(case: Case, gpu: Gpu, ceilings: Ceilings) -> dict[str, Any]:
    """Return the fields of the case's record."""
    sets = num_sets(case.num_bytes, gpu.l2_bytes)
    launch = case.make(gpu, sets)
    torch.cuda.synchronize()
    timing = time_launches(launch, gpu, launches=LAUNCHES, replays=REPLAYS)
    fields: dict[str, Any] = {
        "benchmark": "kernel",
        "kernel": case.kernel,
        **case.sizes,
        "unit": "us",
        "median": round(timing.us, 2),
        "least": round(timing.fastest_us, 2),
        "most": round(timing.slowest_us, 2),
        "gbps": round(case.num_bytes / timing.us / 1e3, 1),
    }
    if case.flops:
        tflops = case.flops / timing.us / 1e6
        return fields | {
            "tflops": round(tflops, 1),
            "of_ceiling": round(tflops / ceilings.tflops, 3),
        }
    return fields | {"of_ceiling": round(fields["gbps"] / ceilings.read_gbps, 3)}


def num_sets(num_bytes: int, l2_bytes: int) -> int:
    """Return how many sets of inputs of this size the L2 cache cannot hold, within reason.

    >>> num_sets(1 << 20, 50 << 20), num_sets(100 << 20, 50 << 20), num_sets(1 << 30, 50 << 20)
    (20, 2, 1)
    """
    wanted = -(-4 * l2_bytes // max(num_bytes, 1))
    return max(1, min(wanted, LAUNCHES, _INPUT_BYTES // max(num_bytes, 1)))
