"""GEMM kernels tuned for the weights of a model: timed at the first start, remembered after it.

Times are kept in the cache of compiled kernels, under a name that says for which CPU, how many of
them, which sources, weight format and shapes they hold. So the choice is made anew from the same
times at every start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spaninfer_host_limits import cpu_name, usable_cpus

from spaninfer_kernels_cpu.codegen.compiled import (
    TIMES_SUFFIX,
    cache_of_these_sources,
    digest_of_sources,
)
from spaninfer_kernels_cpu.codegen.isa_level import features, possible_levels
from spaninfer_kernels_cpu.gemm.trial import Trial
from spaninfer_kernels_cpu.gemm.tuning import (
    ROWS,
    Candidate,
    Choice,
    Seconds,
    candidates,
    choose,
)
from spaninfer_kernels_cpu.quantisation.layout import Format
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.compilers import OnProgress


@dataclass(frozen=True, slots=True)
class Tuned:
    """The candidates for a weight format, their times by name and rows, and the choice.

    Candidates without times did not fit into the budget, or gave other results.
    """

    format: Format
    found: tuple[Candidate, ...]
    seconds: Mapping[str, Seconds]
    was_read: bool  # from the cache

    @property
    def choice(self) -> Choice:
        """The fastest candidates."""
        return choose(self.found, self.seconds)


def thread_times(trial: Trial, tuned: Tuned) -> dict[int, Seconds]:
    """Return the times of what was chosen on all usable CPUs, and on half of them if there are two.

    Half of them are the cores of a CPU that runs two threads on each.
    """
    counts = sorted({max(1, usable_cpus() // 2), usable_cpus()}, reverse=True)
    chosen = Candidate("chosen", tuned.choice.micro)
    return {count: trial.seconds_on(count, chosen) for count in counts}


def tune(trial: Trial, budget_s: float, on_progress: OnProgress, *, anew: bool = False) -> Tuned:
    """Return the fastest kernels for the weights of a trial, all of one format.

    Times come from the cache unless `anew`; otherwise they are taken, for `budget_s` seconds at
    most, and written to it.
    """
    format = trial.weights[0].layout.format
    found = candidates(format, rounded=trial.rounded, levels=possible_levels())
    files, name = cache_of_these_sources(), _name(trial.weights, trial.rounded)
    known = None if anew else _parsed(files.read(name), found)
    if known is not None:
        return Tuned(format, found, known, was_read=True)
    seconds = trial.seconds(found, budget_s, on_progress) if len(found) > 1 else {}
    files.write(name, json.dumps(seconds).encode())
    return Tuned(format, found, seconds, was_read=False)


def _name(weights: Sequence[Packed], rounded: bool) -> str:
    """Return the name of the file with the times of these shapes on this CPU."""
    shapes = sorted({repr(weight.layout) for weight in weights})
    levels = [level.name for level in possible_levels()]
    key = cpu_name(), usable_cpus(), sorted(features()), levels, shapes, rounded
    number = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    return f"gemm.{digest_of_sources()}.{number}{TIMES_SUFFIX}"


def _parsed(content: bytes | None, found: Sequence[Candidate]) -> dict[str, Seconds] | None:
    """Return the times of a file; None where there is none, or none that means these candidates."""
    if content is None:
        return None
    try:
        times: dict[str, Seconds] = {
            str(name): {int(rows): float(each) for rows, each in seconds.items()}
            for name, seconds in json.loads(content).items()
        }
    except (ValueError, AttributeError, TypeError):
        return None
    names = {each.name for each in found}
    is_whole = all(
        set(seconds) == set(ROWS) and min(seconds.values()) > 0 for seconds in times.values()
    )
    return times if is_whole and times.keys() <= names else None
