"""All of `spaninfer bench options`: rounds of plain requests, of both kinds, and of an option."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from spaninfer_engine import ConfigError, RequestError

from spaninfer.bench.engine import Note
from spaninfer.bench.options.cases import BASE, options_of
from spaninfer.bench.options.sides import Ask, Side, Spent
from spaninfer.bench.records import summary
from spaninfer.bench.workloads import Prompts

OPTIONS: Final = tuple(options_of(1))

REQUESTS: Final = 20
EVERY: Final = 10  # one request in so many has the option, where they are mixed
PROMPT_LEN: Final = 64
OUTPUT_LEN: Final = 32


def measure_options(
    side: Side, vocab: int, names: Collection[str], runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield the fields of two records per option: of requests that all have it, and of those
    without it beside some that have.

    A round times plain requests, both kinds, and the option alone, one after the other: `of_plain`
    compares neighbours, so that it holds on a machine that others use, too.
    """
    prompts = Prompts(vocab, seed=0)
    side.spent(_batch(prompts, {}, every=0))  # compiles what is not compiled yet
    for name, fields in options_of(vocab).items():
        if name not in names:
            continue
        try:
            side.spent(_batch(prompts, fields, every=1))
        except (RequestError, ConfigError) as refused:
            note(f"{name}: left out, {refused}")
            continue
        rounds = [
            [side.spent(_batch(prompts, fields, every)) for every in (0, EVERY, 1)]
            for _ in range(runs)
        ]
        for record in records_of(name, rounds):
            note(
                "{option}, {share}: {median:,} {unit}, {of_plain:.3f} of plain, "
                "CPU time {cpu_of_plain:.3f}".format(**record)
            )
            yield record


def _batch(prompts: Prompts, fields: Mapping[str, Any], every: int) -> list[Ask]:
    """Return requests of which one in `every` has the fields; 0: none has."""
    plain = {**BASE, "max_tokens": OUTPUT_LEN}
    asks = [every > 0 and number % every == 0 for number in range(REQUESTS)]
    return [
        Ask(prompts.fresh(PROMPT_LEN), {**plain, **fields} if has else plain, has) for has in asks
    ]


def records_of(name: str, rounds: Sequence[Sequence[Spent]]) -> Iterator[dict[str, Any]]:
    """Yield the fields of the records of an option; a round is plain, mixed, all with it.

    `cpu_of_plain` is the time of the CPUs for the whole batch over that for the plain one.
    """
    all_tokens = REQUESTS * OUTPUT_LEN
    plain_tokens = all_tokens - all_tokens // EVERY
    rates = [
        (all_tokens / plain.all_s, plain_tokens / mixed.plain_s, all_tokens / having.all_s)
        for plain, mixed, having in rounds
    ]
    plain_rates = [plain_tokens / plain.plain_s for plain, *_ in rounds]
    yield {
        "option": name,
        "share": "all",
        **summary("tok/s", [having for *_, having in rates]),
        "of_plain": _middle([having / plain for plain, _, having in rates]),
        "cpu_of_plain": _middle([_cpu_ratio(plain, having) for plain, _, having in rounds]),
    }
    yield {
        "option": name,
        "share": "one in ten: those without it",
        **summary("tok/s", [mixed for _, mixed, _ in rates]),
        "of_plain": _middle([r[1] / p for r, p in zip(rates, plain_rates, strict=True)]),
        "cpu_of_plain": _middle([_cpu_ratio(plain, mixed) for plain, mixed, _ in rounds]),
    }


def _cpu_ratio(plain: Spent, other: Spent) -> float:
    return other.cpu_s / plain.cpu_s if plain.cpu_s else 1.0


def _middle(values: Sequence[float]) -> float:
    return float(f"{median(values):.4g}")
