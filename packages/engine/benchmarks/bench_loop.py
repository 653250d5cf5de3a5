"""Time what a step costs the host where a device computes by itself: one JSON line per case.

    python benchmarks/bench_loop.py

Many requests decode; each step is planned, described, launched on a device that computes nothing,
taken in and written down. Reported are medians over the steps, in microseconds: what the scheduler
takes (plan, apply) and what the runner takes (start with all that a launch prepares, outcome).
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from bench_scheduler import PROMPT_LEN, filled
from spaninfer_engine.backends.cuda.graphs.shapes import write_columns
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.run.runner import Runner
from spaninfer_engine.run.sampler import Sampler
from spaninfer_engine.schedule.scheduler import Scheduler
from spaninfer_engine.schedule.sequence import SequenceState
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Samples, Updates
from spaninfer_engine.step.mirror import SequenceMirror
from spaninfer_engine.step.plan import NewSequence, StepPlan, TableUpdate
from spaninfer_engine.step.sampling import DeviceSamplingParams, fits_kernel
from spaninfer_engine.step.sequences import Sequences
from spaninfer_kernels_cuda.inputs import Columns, columns_len

NUM_STEPS, SPAN_LEN = 500, 32


class Nothing:
    """A device that samples the same token for every row, at once."""

    lookahead = 1
    reports_prompts = False

    def __init__(self, sequences: Sequences, num_rows: int) -> None:
        self._mirror = SequenceMirror(sequences, self, num_rows)
        block = np.zeros(columns_len(num_rows), np.int32)
        self._columns = Columns.of(block, num_rows)
        self._samples = Samples(np.full(num_rows, 17, np.int32), np.zeros(num_rows, np.int32))

    def can_sample(self, entry: NewSequence) -> bool:
        """Sample everything."""
        return fits_kernel(entry)

    def write_tokens(self, row: int, first: int, token_ids: Any) -> None:
        """Forget it."""

    def write_spans(self, row: int, group: int, first: int, spans: Any) -> None:
        """Forget it."""

    def write_sampling(self, row: int, params: DeviceSamplingParams) -> None:
        """Forget it."""

    def launch(self, batch: Batch, updates: Updates) -> Nothing:
        """Do what a GPU's host does."""
        rows = self._mirror.sync(batch, updates)
        write_columns(self._columns, batch, rows, np.zeros_like(batch.starts), None)
        return self

    def wait(self) -> None:
        """Everything is there."""

    def samples(self) -> Samples:
        """Return a token per sequence."""
        return self._samples

    def prompt_logprobs(self) -> None:
        """No sequence asks."""

    def logprobs(self, _rows: Any, _count: int) -> Any:
        """Never called."""
        raise AssertionError

    def logits(self) -> Any:
        """Never called."""
        raise AssertionError

    def run_idle_work(self) -> bool:
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


def _step(scheduler: Scheduler, runner: Runner) -> tuple[float, ...]:
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


def _runner(scheduler: Scheduler, num_running: int) -> Runner:
    """Return a runner that knows the requests which the scheduler runs."""
    context = scheduler.limits.context
    sequences = Sequences(1, max_len=context, span_len=SPAN_LEN, num_rows=num_running)
    runner = Runner(Nothing(sequences, num_running), sequences, Sampler(100), vocab=100)
    seqs: list[SequenceState] = list(scheduler._running)
    sampling = SamplingParams(temperature=0)
    known = [np.array([*c.request.prompt_ids, *c.output_ids]) for c in seqs]
    entered = [NewSequence(c.seq_id, ids, sampling, 0) for c, ids in zip(seqs, known, strict=True)]
    grown = [TableUpdate(c.seq_id, 0, 0, tuple(c.tables[0].spans)) for c in seqs]
    assert all(len(entry.token_ids) > PROMPT_LEN for entry in entered)
    runner._update(StepPlan(0, (), tuple(entered), tuple(grown)))
    return runner


if __name__ == "__main__":
    main()
