"""The time of our engine's steps by operator: a record for each operator of a workload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from spaninfer_kernels_cpu import operator_times, shared_thread_pool

from spaninfer.bench.cpu.turns import Program
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Prompts, Workload

_RUNS: Final = 4  # of a prompt: the last has no step behind it
_SEED: Final = 1 << 31  # of prompts that no round has


def operator_records(program: Program, workload: Workload, vocab: int) -> Iterator[dict[str, Any]]:
    """Yield the fields of a record per operator, microseconds of a step.

    `busy` is the share of that time in which threads computed it, `gbps` the rate at which its
    weights were read.
    """
    pool = shared_thread_pool()
    with pool.traced() as trace:
        for run in range(_RUNS):
            (batch,) = workload.batches(Prompts(vocab, _SEED + run))
            program(batch)
    for times in operator_times(trace):
        elapsed = max(int(times.elapsed.sum()), 1)
        yield {
            "benchmark": "operator",
            "workload": workload.name,
            "operator": times.operator,
            "calls": times.calls,
            **summary("us", (times.elapsed / 1e3).tolist()),
            "busy": round(int(times.busy.sum()) / elapsed / pool.num_threads, 3),
            "gbps": round(times.num_bytes * len(times.elapsed) / elapsed, 2),
        }
