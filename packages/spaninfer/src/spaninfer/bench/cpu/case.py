"""One kernel at a size, to be timed: what it is about, and what it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spaninfer_kernels_cpu import Kind

from spaninfer.bench.cpu.limits import Limits
from spaninfer.bench.records import summary

_WARM_S = 0.05  # a helper that slept is woken on a busy CPU, and moved to a free one later
_TIMED_S = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel at a size; `kind` says which products in registers bound it."""

    kernel: str
    sizes: Mapping[str, object]
    kind: Kind
    num_bytes: int  # of weights, or of keys and values: read once
    operations: int  # a multiplication and an addition are two
    run: Callable[[], object]


def timed(case: Case, limits: Limits, runs: int) -> dict[str, Any]:
    """Return the fields of the case's record, microseconds of a call.

    `of_ceiling` is the larger of two shares, that of the read and that of the products in
    registers: how near the call is to what bounds it.
    """
    _mean_seconds(case.run, _WARM_S)
    fields = summary("us", [1e6 * _mean_seconds(case.run, _TIMED_S) for _ in range(runs)])
    return {
        "benchmark": "kernel",
        "kernel": case.kernel,
        **case.sizes,
        **fields,
        **rates(case, fields["median"], limits),
    }


def rates(case: Case, us: float, limits: Limits) -> dict[str, float]:
    """Return bytes and operations per second of a call of so many microseconds, and the share."""
    gbps, gops = case.num_bytes / us / 1e3, case.operations / us / 1e3
    share = max(gbps / limits.read_gbps, gops / limits.peak_gops(case.kind))
    return {"gbps": round(gbps, 2), "gops": round(gops, 2), "of_ceiling": round(share, 3)}


def _mean_seconds(run: Callable[[], object], least_s: float) -> float:
    """Call until `least_s` have passed, once at least; return the mean seconds of a call."""
    begin, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - begin < least_s:
        run()
        calls += 1
    return (perf_counter() - begin) / calls
