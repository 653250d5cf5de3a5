"""The cost of a prefix hit by the tier that it comes from: KV cache, host memory, disk.

A first engine computes the beginnings of all prompts and leaves them on disk, two of each length. A
second one continues one of them three times, with another end each time: it reads it from disk,
shares it in its KV cache, and, when other prompts have taken that, loads it from host memory. Its
files are read cold: the system's page cache has nothing of them. Those of the other one, which is
continued once, are read from the page cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any, Final, Literal

from spaninfer_engine import Engine, EngineConfig
from spaninfer_engine.tools import complete

from spaninfer.bench import page_cache
from spaninfer.bench.engine import Note, described
from spaninfer.bench.records import circumstances, load, summary
from spaninfer.bench.workloads import GREEDY, Prompts, TokenIds

SHARES: Final = (0.25, 0.5, 0.75, 0.9, 0.99)
SOURCES: Final = ("disk cold", "kv cache", "host", "disk warm")  # in the order of asking

_AT_ONCE = 2  # requests that the KV cache has room for: fewer prompts take all of it
_FIRST: Final = replace(GREEDY, max_tokens=1)
Tier = Literal["none", "disk", "kv cache", "host"]
Source = Literal["disk cold", "kv cache", "host", "disk warm"]
Beginnings = Mapping[float, list[tuple[TokenIds, TokenIds]]]  # read cold and warm, run by run


@dataclass(frozen=True, slots=True)
class _Asked:
    """The time to the first token of one prompt, the CPU time of the process, and the hit."""

    wall_ms: float
    cpu_ms: float
    cached_len: int
    tier: Tier


def measure_kv_tiers(
    asked: Mapping[str, Any],
    prompt_len: int,
    runs: int,
    note: Note,
    parent: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record per share of a prompt and tier; "none" is a prompt without a hit.

    `asked` are fields of EngineConfig but for the sizes of the KV cache and its tiers; `parent` is
    a folder on the disk that is measured, in place of the system's for temporary files. Where files
    cannot be read cold, there are no records of that.
    """
    with TemporaryDirectory(dir=parent) as folder:
        sizes: dict[str, Any] = {
            "max_len": prompt_len + 1,
            "max_running": _AT_ONCE,
            "kv_offload": "2GiB",
        }
        config = EngineConfig(**asked, **sizes, kv_disk=Path(folder))
        with Engine(config) as engine:
            prompts = Prompts(engine.tokenizer.vocab_size, seed=0)
            begun = {
                share: [(prompts.fresh(length), prompts.fresh(length)) for _ in range(runs)]
                for share in SHARES
                if (length := int(prompt_len * share))
            }
            for beginning in chain.from_iterable(chain.from_iterable(begun.values())):
                _ask(engine, beginning)
        with Engine(config) as engine:
            about = {"benchmark": "kv tiers", "prompt_len": prompt_len, **described(engine)}
            place = {**circumstances(engine.resolved.device), "load": load()}
            _ask(engine, prompts.fresh(prompt_len))  # compiles kernels
            measuring = _Measuring(engine, prompts, prompt_len, Path(folder))
            for name, results in measuring.all(begun, note).items():
                found = {
                    "cached": results[0].cached_len,
                    "cpu_ms": summary("ms", [each.cpu_ms for each in results])["median"],
                    **summary("ms", [each.wall_ms for each in results]),
                }
                note(f"{name}: {found['median']:,} ms, {found['cpu_ms']:,} ms of CPU time")
                yield {**about, "workload": name, **found, **place}


@dataclass(frozen=True, slots=True)
class _Measuring:
    """An engine that finds beginnings of prompts in the files under a folder."""

    engine: Engine
    prompts: Prompts
    prompt_len: int
    folder: Path

    def all(self, begun: Beginnings, note: Note) -> dict[str, list[_Asked]]:
        """Return the results of each workload; shares alternate with each other, run by run."""
        is_cold = page_cache.can_drop(self.folder)
        if not is_cold:
            note("the page cache cannot be dropped here: the disk is measured warm only")
        results: dict[str, list[_Asked]] = defaultdict(list)
        for run in range(len(begun[SHARES[0]])):
            results["none"].append(_ask(self.engine, self.prompts.fresh(self.prompt_len)))
            for share, beginnings in begun.items():
                cold, warm = beginnings[run]
                if is_cold:
                    page_cache.drop(self._files())
                for source in SOURCES:
                    result = self._hit(source, warm if source == "disk warm" else cold)
                    if is_cold or source != "disk cold":
                        results[f"{source} {share}"].append(result)
        return results

    def _hit(self, source: Source, beginning: TokenIds) -> _Asked:
        """Ask for a beginning that is in one tier alone, with an end that is in none."""
        match source:
            case "disk warm":
                page_cache.warm(self._files())
            case "host":
                for _ in range(_AT_ONCE + 1):
                    _ask(self.engine, self.prompts.fresh(self.prompt_len))
        _rest(self.engine)
        end = self.prompts.fresh(self.prompt_len - len(beginning))
        result = _ask(self.engine, beginning + end)
        assert source.startswith(result.tier), f"a hit came from {result.tier}, not {source}"
        return result

    def _files(self) -> list[Path]:
        return list(self.folder.rglob("*.span"))


def _rest(engine: Engine) -> None:
    """Let the spans of earlier prompts be written, for two seconds at the most."""
    for _ in range(200):
        sleep(0.01)  # an idle engine publishes what the last step computed after half a millisecond
        found = engine.stats().offload
        assert found is not None
        if found.stored <= found.written + found.dropped + found.failed:
            return


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
