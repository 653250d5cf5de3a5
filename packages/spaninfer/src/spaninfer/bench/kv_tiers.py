"""The cost of a prefix hit by the tier that it comes from: KV cache, host memory, disk.

A first engine computes the beginnings of all prompts and leaves them on disk. A second one is asked
for each beginning three times, with another end each time: it reads it from disk, shares it in its
KV cache, and, when other prompts have taken that, loads it from host memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Final, Literal

from spaninfer_engine import Engine, EngineConfig
from spaninfer_engine.handle import complete

from spaninfer.bench.engine import Note, described
from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.workloads import GREEDY, Prompts, TokenIds

SHARES: Final = (0.25, 0.5, 0.75, 0.9, 0.99)
TIERS: Final = ("disk", "kv cache", "host")  # in the order in which they are asked

_AT_ONCE = 2  # requests that the KV cache has room for: fewer prompts take all of it
_FIRST: Final = replace(GREEDY, max_tokens=1)
Tier = Literal["none", "disk", "kv cache", "host"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The time to the first token of one prompt, the CPU time of the process, and the hit."""

    wall_ms: float
    cpu_ms: float
    cached_len: int
    tier: Tier


def measure_kv_tiers(
    asked: Mapping[str, Any], prompt_len: int, runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield a record per share of a prompt and tier; "none" is a prompt without a hit.

    `asked` are fields of EngineConfig but for the sizes of the KV cache and its tiers.
    """
    with TemporaryDirectory() as folder:
        sizes: dict[str, Any] = {
            "max_len": prompt_len + 1,
            "max_running": _AT_ONCE,
            "kv_offload": "2GiB",
        }
        config = EngineConfig(**asked, **sizes, kv_disk=Path(folder))
        with Engine(config) as engine:
            prompts = Prompts(engine.tokenizer.vocab_size, seed=0)
            begun = {
                share: [prompts.fresh(int(prompt_len * share)) for _ in range(runs)]
                for share in SHARES
            }
            for beginnings in begun.values():
                for beginning in beginnings:
                    _ask(engine, beginning)
        with Engine(config) as engine:
            about = {"benchmark": "kv tiers", "prompt_len": prompt_len, **described(engine)}
            place = circumstances(engine.resolved.device)
            _ask(engine, prompts.fresh(prompt_len))  # compiles kernels
            for name, results in _measured(engine, begun, prompts, prompt_len).items():
                found = {
                    "cached": results[0].cached_len,
                    "cpu_ms": summary("ms", [each.cpu_ms for each in results])["median"],
                    **summary("ms", [each.wall_ms for each in results]),
                }
                note(f"{name}: {found['median']:,} ms, {found['cpu_ms']:,} ms of CPU time")
                yield {**about, "workload": name, **found, **place}


def _measured(
    engine: Engine, begun: Mapping[float, list[TokenIds]], prompts: Prompts, prompt_len: int
) -> dict[str, list[_Asked]]:
    """Return the results of each workload; shares alternate with each other, run by run."""
    results: dict[str, list[_Asked]] = defaultdict(list)
    for run in range(len(begun[SHARES[0]])):
        results["none"].append(_ask(engine, prompts.fresh(prompt_len)))
        for share, beginnings in begun.items():
            beginning = beginnings[run]
            for tier in TIERS:
                if tier == "host":
                    for _ in range(_AT_ONCE + 1):
                        _ask(engine, prompts.fresh(prompt_len))
                whole = beginning + prompts.fresh(prompt_len - len(beginning))
                result = _ask(engine, whole)
                assert result.tier == tier, f"a hit of {share} came from {result.tier}, not {tier}"
                results[f"{tier} {share}"].append(result)
    return results


def _ask(engine: Engine, prompt: TokenIds) -> _Asked:
    before = engine.stats().offload
    begin, begin_cpu = perf_counter(), process_time()
    (answer,) = complete(engine.start_request(prompt, _FIRST)[0])
    wall_ms, cpu_ms = (perf_counter() - begin) * 1e3, (process_time() - begin_cpu) * 1e3
    after = engine.stats().offload
    assert before is not None
    assert after is not None
    tier: Tier = "kv cache" if answer.usage.cached_len else "none"
    if after.host_hit_tokens > before.host_hit_tokens:
        tier = "host"
    if after.disk_hit_tokens > before.disk_hit_tokens:
        tier = "disk"
    return _Asked(wall_ms, cpu_ms, answer.usage.cached_len, tier)
