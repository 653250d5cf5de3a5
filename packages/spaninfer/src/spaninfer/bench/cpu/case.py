"""One kernel at a size, to be timed: what it is about, and what it cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from spaninfer.bench.cpu.limits import Limits, Work
from spaninfer.bench.records import summary

_WARM_S = 0.05  # a helper that slept is woken on a busy CPU, and moved to a free one later
_TIMED_S = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel at a size."""

    kernel: str
    sizes: Mapping[str, object]
    work: Work
    run: Callable[[], object]


def timed(case: Case, limits: Limits, runs: int) -> dict[str, Any]:
    """Return the fields of the case's record, microseconds of a call.

    `of_ceiling` is the larger of two shares, that of the read and that of the GEMMs in
    registers: how near the call is to what bounds it.
    """
    _mean_seconds(case.run, _WARM_S)
    fields = summary("us", [1e6 * _mean_seconds(case.run, _TIMED_S) for _ in range(runs)])
    return {
        "benchmark": "kernel",
        "kernel": case.kernel,
        **case.sizes,
        **fields,
        **case.work.rates(fields["median"] / 1e6, limits),
    }


def _mean_seconds(run: Callable[[], object], least_s: float) -> float:
    """Call until `least_s` have passed, once at least; return the mean seconds of a call."""
    begin, calls = perf_counter(), 0
    while calls == 0 or perf_counter() - begin < least_s:
        run()
        calls += 1
    return (perf_counter() - begin) / calls
