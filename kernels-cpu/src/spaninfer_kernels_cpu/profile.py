"""The time of a step by operator, from a trace: what threads computed, and how long they waited.

A call lasts from the end of the one before it to the end of its last task, so calls of a script add
up to its time. Threads wait in it for its first task, for each other, and where it has fewer tasks
than there are threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.gemm.gemm_arguments import GemmArguments
from spaninfer_kernels_cpu.runtime.call import Call
from spaninfer_kernels_cpu.runtime.task_trace import ScriptRun, TaskTrace, ThreadTasks

Times = NDArray[np.int64]

OUTSIDE: Final = "outside of scripts"
"""The operator of the time between scripts: planning, sampling by numpy, streams of tokens."""


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """The times of an operator's calls in every step, in ns.

    `elapsed` is by the clock, `busy` the sum over threads; `num_bytes` of weights are read by a
    step's calls.
    """

    operator: str
    calls: int
    num_bytes: int
    elapsed: Times
    busy: Times


def operator_times(trace: TaskTrace) -> list[OperatorTimes]:
    """Return the times of all operators of a model's steps, in order of their first calls.

    A step begins with a run of the script that runs most often, of those the longest. What runs
    before the first does not count, nor does the time behind the last one.
    """
    often = Counter(run.script.address for run in trace.runs)
    if not often:
        return []
    model = max(trace.runs, key=lambda run: (often[run.script.address], run.ended - run.began))
    begins = [at for at, run in enumerate(trace.runs) if run.script is model.script]
    threads = trace.threads
    elapsed: dict[str, Times] = {}
    busy: dict[str, Times] = {}
    calls, sizes = Counter[str](), Counter[str]()
    steps = len(begins) - 1
    for step in range(steps):
        runs = trace.runs[begins[step] : begins[step + 1]]
        inside = sum(run.ended - run.began for run in runs)
        of_step = [*_times_of_runs(runs, threads)]
        whole = trace.runs[begins[step + 1]].began - runs[0].began
        of_step.append((OUTSIDE, 0, whole - inside, 0))
        for name, num_bytes, took, computed in of_step:
            elapsed.setdefault(name, np.zeros(steps, np.int64))[step] += took
            busy.setdefault(name, np.zeros(steps, np.int64))[step] += computed
            calls[name] += 1
            sizes[name] += num_bytes
    return [
        OperatorTimes(name, round(calls[name] / steps), sizes[name] // steps, times, busy[name])
        for name, times in elapsed.items()
    ]


def _times_of_runs(
    runs: list[ScriptRun], threads: list[ThreadTasks]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield operator, bytes, elapsed and busy time of every call."""
    for run in runs:
        ends, busy = _times_of_calls(run, threads)
        before = run.began
        for call, end, computed in zip(run.script.calls, ends, busy, strict=True):
            name, num_bytes = _operator(call)
            end = max(before, int(end))
            yield name, num_bytes, end - before, int(computed)
            before = end


def _times_of_calls(run: ScriptRun, threads: list[ThreadTasks]) -> tuple[Times, Times]:
    """Return when each call of a run ended, and for how long threads computed it."""
    ends, busy = (np.zeros(len(run.script), np.int64) for _ in range(2))
    for tasks in threads:
        first, stop = np.searchsorted(tasks.began, (run.began, run.ended))
        call, began, ended = (each[first:stop] for each in tasks[1:])
        np.maximum.at(ends, call, ended)
        np.add.at(busy, call, ended - began)
    return ends, busy


def _operator(call: Call) -> tuple[str, int]:
    """Return what records call an operator, and the bytes of its weights.

    Products are told apart by their outputs.
    """
    module = call.kernel.__module__.rpartition(".")[2]
    arguments = call.arguments
    if not isinstance(arguments, GemmArguments):
        return f"{module}.{call.kernel.__name__.strip('_')}", 0
    weight = arguments.weight
    gated = ", gated" if arguments.half else ""
    num_bytes = weight.panels * weight.panel_bytes
    return f"gemm of {weight.outputs} outputs, {num_bytes / 1e6:.3g} MB{gated}", num_bytes
