"""Time what the scheduler costs per step while many requests decode: one JSON line per case.

    python benchmarks/bench_scheduler.py

A step is planned, and a made-up result is taken in; nothing is computed. Reported is the median
over the steps and the 95th percentile, which holds the steps in which many requests take spans.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import replace
from importlib.metadata import version

import numpy as np
from spaninfer_engine.backends.backend import HOST_TUNING
from spaninfer_engine.cache.rope_state import RopeState
from spaninfer_engine.request.request import Placement, Request, SamplingParams
from spaninfer_engine.schedule.admission import Limits
from spaninfer_engine.schedule.kv_cache_manager import CacheShape
from spaninfer_engine.schedule.scheduler import Scheduler
from spaninfer_engine.step.plan import StepPlan, StepResult

PROMPT_LEN = 500
NUM_STEPS = 1000


def main() -> None:
    """Print a record per number of requests and span length."""
    for num_running, span_len in ((1, 32), (32, 32), (256, 32), (256, 16), (256, 128)):
        print(json.dumps(measure(num_running, span_len)), flush=True)


def measure(num_running: int, span_len: int) -> dict[str, object]:
    """Return the record of one case."""
    scheduler = filled(num_running, span_len)
    times_us = []
    for _ in range(NUM_STEPS):
        begin = time.perf_counter()
        plan = scheduler.plan(begin)
        planned = time.perf_counter()
        assert plan is not None
        assert len(plan.slices) == num_running
        result = _result(plan)
        drawn = time.perf_counter()
        scheduler.apply(result, drawn)
        scheduler.take_events()
        times_us.append((time.perf_counter() - drawn + planned - begin) * 1e6)
    return {
        "benchmark": "scheduler",
        "running": num_running,
        "span_len": span_len,
        "step_us_median": round(statistics.median(times_us), 1),
        "step_us_p95": round(statistics.quantiles(times_us, n=20)[-1], 1),
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "version": version("spaninfer-engine"),
    }


def filled(num_running: int, span_len: int) -> Scheduler:
    """Return a scheduler whose requests have all computed their prompts."""
    steps_before = num_running * PROMPT_LEN // HOST_TUNING.mixed_prompt_tokens
    context = PROMPT_LEN + steps_before + NUM_STEPS + 100
    limits = Limits(
        context=context,
        vocab=100_000,
        max_running=num_running,
        max_waiting=num_running,
        tuning=replace(HOST_TUNING, step_tokens=num_running + 4096),
    )
    num_spans = num_running * (context // span_len + 2)
    scheduler = Scheduler(limits, CacheShape(span_len, (num_spans,), (None,), "bf16", RopeState()))
    for number in range(num_running):
        request = Request(
            id=number,
            prompt_ids=(number * 7919 + np.arange(PROMPT_LEN)) % 100_000,
            sampling=SamplingParams(),
            placement=Placement(),
            seed=0,
            arrived_s=0.0,
            end_ids=frozenset({-1}),
        )
        scheduler.add(scheduler.kv_cache.sequences_of(request, context))
    while True:
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.apply(_result(plan), 0.0)
        scheduler.take_events()
        if len(plan.slices) == plan.num_tokens == num_running:
            return scheduler


def _result(plan: StepPlan) -> StepResult:
    tokens = tuple(part.stop if part.samples else None for part in plan.slices)
    return StepResult(plan.number, tokens, {}, {}, {})


if __name__ == "__main__":
    main()
