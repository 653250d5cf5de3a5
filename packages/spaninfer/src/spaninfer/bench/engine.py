"""Times the engine at its workloads: ids in, ids out, greedy unless a workload says otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from time import perf_counter, sleep
from typing import Any

from spaninfer_engine import Engine
from spaninfer_engine.tools import complete

from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.workloads import WORKLOADS, Batch, Prompts, Workload, rehearsed, warm_up

Note = Callable[[str], None]

MAX_WAITING = 4096  # the mixed workload starts 1024 requests at once
REST_S = 5.0  # in which an engine captures the graphs that it leaves for idle time

_WARM_UP_SEED = 1 << 32  # of prompts that no run has
_SETTINGS = (
    *("backend", "graphs", "batch_invariant", "span_len", "step_tokens", "max_running"),
    "prefix_cache",
)


def measure(
    engine: Engine, names: Collection[str], runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield a record per workload: all runs, each with prompts of its own.

    `names` holds that of one workload at least. Prompts are drawn for those that are left out, too,
    so that the ones after them get theirs.
    """
    streams = [Prompts(_vocab(engine), seed) for seed in range(runs)]
    rehearsal = Prompts(_vocab(engine), _WARM_UP_SEED)
    for stream in streams:
        seconds_of(engine, warm_up(stream))
    if engine.resolved.graphs:
        sleep(REST_S)
    last = max(place for place, workload in enumerate(WORKLOADS) if workload.name in names)
    for workload in WORKLOADS[: last + 1]:
        alike = list(workload.batches(rehearsal)) if workload.name in names else []
        longest = max((batch.context for batch in alike), default=0)
        if longest > engine.context:
            note(
                f"{workload.name}: skipped, {longest} tokens exceed the context of {engine.context}"
            )
            alike = []
        if not alike:
            for stream in streams:
                deque(workload.batches(stream), maxlen=0)
            continue
        seconds_of(engine, rehearsed(alike[0]))
        values = [value for stream in streams for value in _values(engine, workload, stream)]
        fields = summary(workload.unit, values)
        note(f"{workload.name}: {fields['median']:,} {fields['unit']}")
        yield {
            "benchmark": "engine",
            "workload": workload.name,
            **described(engine),
            **fields,
            **circumstances(engine.resolved.device),
        }


def described(engine: Engine) -> dict[str, Any]:
    """Return the fields that say which engine was measured."""
    resolved = engine.resolved
    decided = {decision.what: decision.value for decision in resolved.decisions}
    return {
        "model": resolved.name,
        "weights": decided.get("weights", "checkpoint"),
        "dtype": resolved.dtype,
        "kv": resolved.kv_dtype,
        "settings": {name: getattr(resolved, name) for name in _SETTINGS},
    }


def _vocab(engine: Engine) -> int:
    return engine.tokenizer.vocab_size


def _values(engine: Engine, workload: Workload, prompts: Prompts) -> list[float]:
    timed = [(batch, seconds_of(engine, batch)) for batch in workload.batches(prompts)]
    batches, seconds = zip(*timed, strict=True)
    return workload.values(batches, seconds)


def seconds_of(engine: Engine, batch: Batch) -> float:
    """Return the time from the first request's start to the last one's end."""
    samplings = [replace(batch.sampling, max_tokens=wanted) for wanted in batch.output_lens]
    begin = perf_counter()
    if batch.as_list:
        answers = engine.generate(batch.prompts, samplings)
    else:
        handles = [
            engine.start_request(prompt, sampling)[0]
            for prompt, sampling in zip(batch.prompts, samplings, strict=True)
        ]
        answers = [complete(handle)[0] for handle in handles]
    seconds = perf_counter() - begin
    given = tuple(len(answer.token_ids) for answer in answers)
    assert given == batch.output_lens, "ignore_eos leaves the length as the only end"
    return seconds
