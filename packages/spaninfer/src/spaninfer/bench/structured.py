"""The cost of structured output: compiling schemas, masks per token, steps of guided requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any, Final

import numpy as np
from spaninfer_engine import Engine, InvalidGrammar, SamplingParams, StructuredOutput
from spaninfer_engine.tools import Grammar

from spaninfer.bench.engine import Note, described, seconds_of
from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.workloads import Batch, Prompts

BATCHES = (1, 16, 64)
_SHORT, _LONG = 16, 80  # tokens out; their difference has no prefill in it
_PROMPT_LEN = 32
_WALK = 200  # tokens of a random walk through a grammar

# Answers that do not end by themselves, so that guided requests are as long as the others.
ENDLESS: Final = StructuredOutput(
    json_schema={
        "type": "array",
        "minItems": 1000,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "kind": {"enum": ["cat", "dog", "bird"]},
            },
            "required": ["name", "age", "kind"],
            "additionalProperties": False,
        },
    }
)


def schemas_in(folder: Path | None) -> list[StructuredOutput]:
    """Return the schemas of a folder in the layout of the JSON-Schema test suite."""
    files = sorted(folder.rglob("*.json")) if folder else []
    parsed = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    groups = [each for groups in parsed if isinstance(groups, list) for each in groups]
    schemas = [each["schema"] for each in groups if isinstance(each.get("schema"), dict)]
    return [StructuredOutput(json_schema=schema) for schema in schemas] or [ENDLESS]


def measure_structured(
    engine: Engine, schemas: Sequence[StructuredOutput], runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield a record per measurement; runs of guided and of free requests alternate."""

    def record(workload: str, unit: str, values: Sequence[float], **more: Any) -> dict[str, Any]:
        fields = summary(unit, values)
        note(f"{workload}: {fields['median']:,} {unit}")
        about = {"benchmark": "structured", "workload": workload, **described(engine), **more}
        return {**about, **fields, **circumstances(engine.resolved.device)}

    first = engine.compile_grammar(ENDLESS)  # and the vocabulary
    times, grammars = _compiled(engine, schemas)
    counts = {"schemas": len(schemas), "accepted": len(grammars)}
    yield record("compile p50", "ms", [times[len(times) // 2]], **counts)
    yield record("compile p99", "ms", [_p99(times)], **counts)
    vocab = engine.vocab_size
    end_ids = engine.tokenizer.eos_ids
    masks = [
        each for grammar in [first, *grammars] for each in _mask_times(grammar, vocab, end_ids)
    ]
    yield record("mask p50", "us", [sorted(masks)[len(masks) // 2]], masks=len(masks))
    yield record("mask p99", "us", [_p99(masks)], masks=len(masks))
    for batch_size in BATCHES:
        free, guided = _step_times(engine, batch_size, runs)
        yield record(f"step free bs{batch_size}", "ms", free)
        yield record(f"step guided bs{batch_size}", "ms", guided)
        more = [100 * (one / other - 1) for one, other in zip(guided, free, strict=True)]
        yield record(f"guided over free bs{batch_size}", "percent", more)


def _compiled(
    engine: Engine, schemas: Sequence[StructuredOutput]
) -> tuple[list[float], list[Grammar]]:
    """Return the times in ms, sorted, refusals among them, and what was accepted."""
    times, grammars = [], []
    for schema in schemas:
        begin = perf_counter()
        try:
            grammars.append(engine.compile_grammar(schema))
        except InvalidGrammar:
            pass
        finally:
            times.append((perf_counter() - begin) * 1e3)
    return sorted(times), grammars


def _mask_times(grammar: Grammar, vocab: int, end_ids: frozenset[int]) -> Iterator[float]:
    """Yield µs per mask of a random walk through a grammar."""
    rng = np.random.default_rng(0)
    matcher, ids = grammar.matcher((), 0), np.zeros(_WALK, np.int32)
    bits = np.zeros(-(-vocab // 32) * 4, np.uint8)
    for position in range(_WALK):
        begin = perf_counter()
        matcher.fill(ids[:position], bits)
        yield (perf_counter() - begin) * 1e6
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        if end_ids.issuperset(allowed.tolist()):
            return
        ids[position] = rng.choice(allowed)


def _step_times(engine: Engine, batch_size: int, runs: int) -> tuple[list[float], list[float]]:
    """Return ms per step of free and of guided requests, whose runs alternate."""
    drawn = SamplingParams(temperature=0.0)
    kinds = (replace(drawn, ignore_eos=True), replace(drawn, structured=ENDLESS))
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + 1):
        for sampling, times in zip(kinds, found, strict=True):
            prompts = Prompts(engine.tokenizer.vocab_size, seed=run)
            asked = [prompts.fresh(_PROMPT_LEN) for _ in range(batch_size)]
            short, long = (
                seconds_of(engine, Batch.of(asked, length, sampling)) for length in (_SHORT, _LONG)
            )
            if run:  # the first one compiles kernels
                times.append((long - short) / (_LONG - _SHORT) * 1e3)
    return found


def _p99(times: Sequence[float]) -> float:
    return quantiles(times, n=100)[-1] if len(times) > 1 else times[0]
