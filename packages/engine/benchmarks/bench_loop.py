"""Time what a step costs the host where a device computes by itself: one JSON line per case.

    python benchmarks/bench_loop.py

Many requests decode; each step is planned, described, launched on a device that computes nothing,
taken in and written down. Reported are medians over the steps, in microseconds: what the scheduler
takes (plan, apply) and what the runner takes (start without the launch itself, outcome).
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from bench_scheduler import PROMPT_LEN, filled
from spaninfer_engine.ops.device import Columns, Launch, Wish
from spaninfer_engine.plan import Entry, Growth, StepPlan
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.run.overlap import OverlappedRunner
from spaninfer_engine.run.sample import Sampler
from spaninfer_engine.schedule.choice import Choice
from spaninfer_engine.schedule.scheduler import Scheduler

NUM_STEPS, SPAN_LEN = 500, 32


@dataclass
class Block:
    """Columns in ordinary memory."""

    rows: Any
    starts: Any
    stops: Any
    draws: Any
    bounds: Any
    wanted: Any


class Nothing:
    """A device that draws the same token for everybody, at once."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        sizes = (num_rows,) * 4 + (num_rows + 1,) * 2
        self._columns = Block(*(np.zeros(size, np.int32) for size in sizes))
        self._tokens = np.full(num_rows, 17, np.int32)

    def write_tokens(self, row: int, first: int, token_ids: Any) -> None:
        """Forget it."""

    def write_spans(self, row: int, group: int, first: int, spans: Any) -> None:
        """Forget it."""

    def write_wish(self, row: int, wish: Wish) -> None:
        """Forget it."""

    def columns(self) -> Columns:
        """Return the same ones for every step."""
        return self._columns

    def launch(self, launch: Launch) -> Nothing:  # noqa: ARG002
        """Return at once."""
        return self

    def token_ids(self) -> Any:
        """Return a token per row."""
        return self._tokens

    def logits(self) -> Any:
        """Nobody asks."""
        raise AssertionError

    def use_time(self) -> bool:
        """Nothing is to be made ready."""
        return False

    def close(self) -> None:
        """Nothing is held."""


def main() -> None:
    """Print a record per number of requests."""
    for num_running in (1, 32, 256):
        print(json.dumps(measure(num_running)), flush=True)


def measure(num_running: int) -> dict[str, object]:
    """Return the record of one case."""
    scheduler = filled(num_running, SPAN_LEN)
    runner = _runner(scheduler, num_running)
    times = np.array([_step(scheduler, runner) for _ in range(NUM_STEPS)]) * 1e6
    plan, start, outcome, apply = (round(statistics.median(column), 1) for column in times.T)
    return {
        "benchmark": "loop",
        "running": num_running,
        "plan_us": plan,
        "start_us": start,
        "outcome_us": outcome,
        "apply_us": apply,
        "step_us": round(plan + start + outcome + apply, 1),
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "version": version("spaninfer-engine"),
    }


def _step(scheduler: Scheduler, runner: OverlappedRunner) -> tuple[float, ...]:
    """Return the seconds of plan, start, outcome and apply."""
    marks = [time.perf_counter()]
    plan = scheduler.plan(marks[0])
    assert plan is not None
    marks.append(time.perf_counter())
    outcome = runner.start(plan)
    marks.append(time.perf_counter())
    result = outcome()
    marks.append(time.perf_counter())
    scheduler.apply(result, marks[-1])
    scheduler.take_events()
    marks.append(time.perf_counter())
    return tuple(np.diff(marks))


def _runner(scheduler: Scheduler, num_running: int) -> OverlappedRunner:
    """Return a runner that knows the requests which the scheduler runs."""
    runner = OverlappedRunner(
        Nothing(num_running),
        Sampler(),
        [None],
        num_groups=1,
        span_len=SPAN_LEN,
        max_len=scheduler.limits.context,
        max_running=num_running,
    )
    choices: list[Choice] = list(scheduler._running)
    sampling = SamplingParams(temperature=0)
    known = [np.array([*c.request.prompt_ids, *c.output_ids]) for c in choices]
    entered = [Entry(c.request_id, ids, sampling, 0) for c, ids in zip(choices, known, strict=True)]
    grown = [Growth(c.request_id, 0, 0, tuple(c.tables[0].spans)) for c in choices]
    assert all(len(entry.token_ids) > PROMPT_LEN for entry in entered)
    runner._update(StepPlan(0, (), tuple(entered), tuple(grown)))
    return runner


if __name__ == "__main__":
    main()
