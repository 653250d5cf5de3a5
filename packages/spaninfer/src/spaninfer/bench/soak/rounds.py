"""Rounds of a soak as records: what clients waited, alone and attacked, and what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spaninfer.bench.records import summary
from spaninfer.bench.soak.client import LOST
from spaninfer.bench.soak.ordinary import Waits, percentile

PERCENTILES: Final = {"p50": 50.0, "p99": 99.0}
WAITS: Final[Mapping[str, Callable[[Waits], Sequence[float]]]] = {
    "first token": lambda waits: waits.first,
    "whole answer": lambda waits: waits.whole,
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a round: what ordinary clients met, and the CPU time of every side."""

    seconds: float
    waits: Waits
    cpus: Mapping[str, float]  # CPU seconds per second, by side
    attacks: Mapping[str, Mapping[str, int]]  # requests, by attack and by how they ended
    peak_mib: float | None  # the server's memory so far


@dataclass(frozen=True, slots=True)
class Round:
    """Ordinary clients alone, then attacked; and what the server holds when all have left."""

    alone: Phase
    attacked: Phase
    held: Mapping[str, float]
    rss_mib: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a soak, over all rounds, ordinary clients and attackers."""

    requests: Mapping[str, float]
    leaked_spans: float
    growth_mib: float | None  # of the server's memory, between the ends of the first and last round

    @property
    def is_good(self) -> bool:
        """True if nobody waited in vain, and no span is lost."""
        return not self.requests[LOST] and not self.leaked_spans

    def __str__(self) -> str:
        """Return it as a sentence."""
        counts = ", ".join(f"{count:,.0f} {name}" for name, count in self.requests.items())
        memory = "" if self.growth_mib is None else f"; memory grew by {self.growth_mib:g} MiB"
        return f"requests: {counts}; spans leaked: {self.leaked_spans:g}{memory}"


def verdict(rounds: Sequence[Round]) -> Verdict:
    """Return what rounds come to."""
    phases = [phase for each in rounds for phase in (each.alone, each.attacked)]
    told = [phase.waits.tally.summary() for phase in phases]
    told += [dict(counts) for phase in phases for counts in phase.attacks.values()]
    rss = [each.rss_mib for each in rounds]
    first, last = rss[0], rss[-1] if len(rounds) > 1 else None
    return Verdict(
        _sum(told),
        sum(each.held["spans"] for each in rounds),
        None if first is None or last is None else round(last - first, 1),
    )


def records(rounds: Sequence[Round], about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of a soak; their runs are the rounds, and `about` is in each."""
    for fields in _fields(rounds):
        yield {"benchmark": "soak", **about, **fields}


def _fields(rounds: Sequence[Round]) -> Iterator[dict[str, Any]]:
    for what in WAITS:
        for at in PERCENTILES:
            yield from _waits(rounds, what, at)
    yield from _own_waits(rounds)
    for phase in ("alone", "attacked"):
        phases = [getattr(each, phase) for each in rounds]
        rates = [each.waits.tally.summary()["answered"] / each.seconds for each in phases]
        counts = _sum(each.waits.tally.summary() for each in phases)
        held = {} if phase == "alone" else {"held": _sum(each.held for each in rounds)}
        about = {"what": "ordinary requests", "phase": phase}
        yield about | summary("requests/s", rates) | {"requests": counts} | held
        for side in phases[0].cpus:
            runs = [each.cpus[side] for each in phases]
            yield {"what": f"CPU of {side}", "phase": phase} | summary("CPUs", runs)
        yield from _memory({"what": "peak memory", "phase": phase}, [p.peak_mib for p in phases])
    yield from _memory({"what": "memory after"}, [each.rss_mib for each in rounds])
    for name in rounds[0].attacked.attacks:
        did = [each.attacked.attacks[name] for each in rounds]
        rates = [
            each["sent"] / phase.attacked.seconds for each, phase in zip(did, rounds, strict=True)
        ]
        yield {"what": name} | summary("requests/s", rates) | {"requests": _sum(did)}


def _waits(rounds: Sequence[Round], what: str, at: str) -> Iterator[dict[str, Any]]:
    """Yield what clients waited, alone and attacked, and how many times as long."""
    alone, attacked = (
        [percentile(WAITS[what](each.waits), PERCENTILES[at]) for each in phases]
        for phases in ([each.alone for each in rounds], [each.attacked for each in rounds])
    )
    ratios = [after / before for before, after in zip(alone, attacked, strict=True)]
    about = {"what": what, "at": at}
    yield about | {"phase": "alone"} | summary("ms", [run * 1e3 for run in alone])
    yield about | {"phase": "attacked"} | summary("ms", [run * 1e3 for run in attacked])
    yield about | {"phase": "attacked"} | summary("of alone", ratios)


def _own_waits(rounds: Sequence[Round]) -> Iterator[dict[str, Any]]:
    """Yield how much of their time clients waited for a CPU of their own."""
    for phase in ("alone", "attacked"):
        phases = [getattr(each, phase) for each in rounds]
        for at, share in PERCENTILES.items():
            runs = [percentile(each.waits.own, share) * 1e3 for each in phases if each.waits.own]
            if runs:
                about = {"what": "first token, client without a CPU", "at": at, "phase": phase}
                yield about | summary("ms", runs)


def _memory(about: Mapping[str, Any], runs: Sequence[float | None]) -> Iterator[dict[str, Any]]:
    known = [run for run in runs if run is not None]
    if known:
        yield {**about, **summary("MiB", known)}


def _sum(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return dict(total)
