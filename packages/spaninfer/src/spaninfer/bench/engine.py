"""Times the engine at its workloads: ids in, ids out, greedy unless a workload says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from spaninfer_engine import Engine
from spaninfer_engine.handle import complete

from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.workloads import WORKLOADS, Batch, Prompts, Workload, rehearsed, warm_up

Note = Callable[[str], None]

MAX_WAITING = 4096  # the mixed workload starts 1024 requests at once

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
    last = max(place for place, workload in enumerate(WORKLOADS) if workload.name in names)
    for workload in WORKLOADS[: last + 1]:
        drawn = [workload.batches(stream) for stream in streams]
        if workload.name not in names:
            continue
        longest = max(batch.context for batch in drawn[0])
        if longest > engine.context:
            note(f"{workload.name}: left out, {longest} tokens do not fit {engine.context}")
            continue
        seconds_of(engine, rehearsed(workload.batches(rehearsal)[0]))
        values = [value for batches in drawn for value in _values(engine, workload, batches)]
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


def _values(engine: Engine, workload: Workload, batches: tuple[Batch, ...]) -> list[float]:
    return workload.values(batches, [seconds_of(engine, batch) for batch in batches])


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
