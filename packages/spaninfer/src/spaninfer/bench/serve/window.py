"""A stretch of time: what was answered in it, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

from spaninfer.bench.records import summary
from spaninfer.bench.serve.workloads import Workload
from spaninfer.bench.soak.ordinary import percentile

_ROUNDS = 300_000


@dataclass(frozen=True, slots=True)
class Window:
    """Counts over a window; without HTTP there are neither events nor gaps."""

    seconds: float
    cpu_s: float  # of who answered
    answers: int
    tokens: int
    events: int = 0
    gaps: Sequence[float] = ()  # seconds between two reads of an answer
    client_cpu_s: float = 0.0
    engine_cpu_s: float | None = None  # of the engine's process, where API servers answer


def records(workload: Workload, windows: Sequence[Window]) -> Iterator[dict[str, Any]]:
    """Yield the records of a workload; its runs are the windows."""
    if workload.is_stream:
        counts, unit, each = [window.tokens for window in windows], "tok/s", "us/token"
    else:
        counts, unit, each = [window.answers for window in windows], "requests/s", "us/request"
    pairs = list(zip(windows, counts, strict=True))
    yield {"what": "rate"} | summary(unit, [count / each.seconds for each, count in pairs])
    yield {"what": "CPU"} | summary(each, [one.cpu_s * 1e6 / max(n, 1) for one, n in pairs])
    apart = [(one.engine_cpu_s, n) for one, n in pairs if one.engine_cpu_s is not None]
    if apart:
        spent = summary(each, [cpu_s * 1e6 / max(n, 1) for cpu_s, n in apart])
        yield {"what": "CPU of the engine's process"} | spent
    if not windows[0].events and not windows[0].client_cpu_s:
        return
    yield {"what": "CPUs"} | summary("CPUs", [each.cpu_s / each.seconds for each in windows])
    clients = [each.client_cpu_s / each.seconds for each in windows]
    yield {"what": "CPUs of the clients"} | summary("CPUs", clients)
    if workload.is_stream:
        ratios = [each.events / max(each.tokens, 1) for each in windows]
        yield {"what": "events"} | summary("events/token", ratios)
        for at in (50.0, 99.0, 100.0):
            waits = [percentile(each.gaps, at) * 1e3 for each in windows]
            yield {"what": "wait for the next token", "at": f"p{at:g}"} | summary("ms", waits)


def python_ns() -> float:
    """Return the CPU time of one round of a loop that adds integers: by it, CPU times of machines
    and days compare, and those beside programs that share a core.
    """
    begin_s = thread_time()
    total = 0
    for number in range(_ROUNDS):
        total += number
    return (thread_time() - begin_s) * 1e9 / _ROUNDS
