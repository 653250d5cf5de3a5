"""All of `spaninfer bench options`: rounds of plain requests, of both kinds, and of an option."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import sleep
from typing import Any, Final

from spaninfer_engine import ConfigError, RequestError

from spaninfer.bench.engine import Note
from spaninfer.bench.options.cases import BASE, options_of
from spaninfer.bench.options.sides import Ask, Side, Spent
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Prompts

OPTIONS: Final = tuple(options_of(1))

REST_S: Final = 0.3  # in which an engine on a GPU captures the graphs that its steps lacked
EVERY: Final = 10  # one request in this many has the option, where they are mixed


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that start at once, and tokens of each."""

    requests: int
    prompt_len: int
    output_len: int


FOR_CPUS: Final = Batch(requests=20, prompt_len=64, output_len=32)
FOR_GPUS: Final = Batch(requests=64, prompt_len=256, output_len=48)
"""FOR_CPUS ends on a GPU before its clock has risen: 20 ms of a model of 0.5B on an H200."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds that are timed: batches of random prompts over a vocabulary, that many times."""

    batch: Batch
    vocab: int
    runs: int


def measure_options(
    side: Side, timed: Rounds, names: Collection[str], note: Note
) -> Iterator[dict[str, Any]]:
    """Yield the fields of two records per option: of requests that all have it, and of those
    without it beside some that have.

    A round times plain requests, both kinds, and the option alone, one after the other: `of_plain`
    compares neighbours, so that it holds on a machine that others use, too. Before the first round
    of an option, what it needs is compiled, and the engine rests.
    """
    prompts = Prompts(timed.vocab, seed=0)

    def spent(fields: Mapping[str, Any], every: int) -> Spent:
        return side.spent(_asks(timed.batch, prompts, fields, every))

    spent({}, every=0)  # compiles what is not compiled yet
    for name, fields in options_of(timed.vocab).items():
        if name not in names:
            continue
        try:
            for every in (EVERY, 1):
                spent(fields, every)
        except (RequestError, ConfigError) as refused:
            note(f"{name}: skipped, {refused}")
            continue
        sleep(REST_S)
        rounds = [[spent(fields, every) for every in (0, EVERY, 1)] for _ in range(timed.runs)]
        for record in records_of(name, timed.batch, rounds):
            note(
                "{option}, {share}: {median:,} {unit}, {of_plain:.3f} of plain, "
                "CPU time {cpu_of_plain:.3f}".format(**record)
            )
            yield record


def _asks(batch: Batch, prompts: Prompts, fields: Mapping[str, Any], every: int) -> list[Ask]:
    """Return requests of which one in `every` has the fields; 0: none has."""
    plain = {**BASE, "max_tokens": batch.output_len}
    asks = [every > 0 and number % every == 0 for number in range(batch.requests)]
    return [
        Ask(prompts.fresh(batch.prompt_len), {**plain, **fields} if has else plain, has)
        for has in asks
    ]


def records_of(
    name: str, batch: Batch, rounds: Sequence[Sequence[Spent]]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of the records of an option; a round is plain, mixed, all with it.

    `cpu_of_plain` is the time of the CPUs for the whole batch over that for the plain one.
    """
    num_plain = batch.requests - -(-batch.requests // EVERY)
    all_tokens, plain_tokens = (count * batch.output_len for count in (batch.requests, num_plain))
    rates = [
        (all_tokens / plain.all_s, plain_tokens / mixed.plain_s, all_tokens / having.all_s)
        for plain, mixed, having in rounds
    ]
    plain_rates = [plain_tokens / plain.plain_s for plain, *_ in rounds]
    about = {"option": name, **asdict(batch)}
    yield {
        **about,
        "share": "all",
        **summary("tok/s", [having for *_, having in rates]),
        "of_plain": _middle([having / plain for plain, _, having in rates]),
        "cpu_of_plain": _middle([_cpu_ratio(plain, having) for plain, _, having in rounds]),
    }
    yield {
        **about,
        "share": "one in ten: those without it",
        **summary("tok/s", [mixed for _, mixed, _ in rates]),
        "of_plain": _middle([r[1] / p for r, p in zip(rates, plain_rates, strict=True)]),
        "cpu_of_plain": _middle([_cpu_ratio(plain, mixed) for plain, mixed, _ in rounds]),
    }


def _cpu_ratio(plain: Spent, other: Spent) -> float:
    return other.cpu_s / plain.cpu_s if plain.cpu_s else 1.0


def _middle(values: Sequence[float]) -> float:
    return float(f"{median(values):.4g}")
