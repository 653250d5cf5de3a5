"""Workloads of the engine benchmark: requests that start at once, and metrics of their times.

The definitions are those under which other engines were measured (docs/guides/benchmarks.md), down
to the draws: `Prompts` with seed 0 gives the prompts that they were given, if it is asked in the
order of `WORKLOADS`, and a batch is drawn when its turn comes, while the machine rests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Final, Literal

from spaninfer_engine import SamplingParams

TokenIds = tuple[int, ...]

GREEDY: Final = SamplingParams(temperature=0.0, ignore_eos=True)
DRAWN: Final = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, ignore_eos=True)

_BATCHES = (1, 8, 32, 64, 128, 256)
_DECODE_PROMPT_LEN = 512
_SHORT, _LONG = 16, 144  # tokens out; their difference has no prefill in it
_PREFILL_LENS = (512, 4000, 8192)
_SHARED_LEN = 4000
_HITS = (0.25, 0.5, 0.75, 0.9, 0.99)
_REPEATS = 5
_MIXED = 1024


class Prompts:
    """The random prompts of one run, each drawn on demand."""

    def __init__(self, vocab: int, seed: int) -> None:
        self._random = Random(seed)
        # Special tokens lie at both ends of large vocabularies.
        self._ids = range(100, vocab - 1000) if vocab > 2000 else range(vocab)

    def fresh(self, prompt_len: int) -> TokenIds:
        """Return a prompt that shares nothing with any other."""
        first, stop = self._ids.start, self._ids.stop
        return tuple(self._random.randrange(first, stop) for _ in range(prompt_len))

    @cached_property
    def shared(self) -> TokenIds:
        """The prompt whose beginnings are found in the prefix cache."""
        return self.fresh(_SHARED_LEN)


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that start at once: their prompts, and how many tokens each is to give.

    They arrive in this order, or go to the engine `as_list`, which then may choose another.
    """

    prompts: tuple[TokenIds, ...]
    output_lens: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    as_list: bool = False

    @classmethod
    def of(
        cls, prompts: Sequence[TokenIds], output_len: int, sampling: SamplingParams = GREEDY
    ) -> Batch:
        """Return the batch in which every request gives as many tokens."""
        return cls(tuple(prompts), (output_len,) * len(prompts), sampling)

    @property
    def context(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return max(len(p) + n for p, n in zip(self.prompts, self.output_lens, strict=True))


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the table: batches one after the other, and the numbers that their times give."""

    name: str
    unit: Literal["ms", "tok/s"]
    batches: Callable[[Prompts], Iterable[Batch]]  # drawn one by one
    values: Callable[[Sequence[Batch], Sequence[float]], list[float]]  # of batches and seconds


def warm_up(prompts: Prompts) -> Batch:
    """Return the batch before the first workload, whose time does not count."""
    return Batch.of([prompts.fresh(64) for _ in range(8)], 16)


def rehearsed(batch: Batch) -> Batch:
    """Return as much of a batch as brings about what is compiled or captured on first use."""
    short = tuple(min(output_len, _SHORT) for output_len in batch.output_lens)
    most = _BATCHES[-1]
    return replace(batch, prompts=batch.prompts[:most], output_lens=short[:most])


def _time_per_token(size: int, *, sampling: SamplingParams = GREEDY, suffix: str = "") -> Workload:
    """Milliseconds per step of a batch: the times of long and short answers, subtracted."""

    def batches(prompts: Prompts) -> Iterator[Batch]:
        for output_len in (_SHORT, _LONG):
            drawn = [prompts.fresh(_DECODE_PROMPT_LEN) for _ in range(size)]
            yield Batch.of(drawn, output_len, sampling)

    def values(batches: Sequence[Batch], seconds: Sequence[float]) -> list[float]:  # noqa: ARG001
        short, long = seconds
        return [(long - short) / (_LONG - _SHORT) * 1e3]

    return Workload(f"tpot_bs{size}{suffix}", "ms", batches, values)


def _time_to_first(prompt_len: int) -> Workload:
    """Milliseconds from a prompt to its first token, nothing else running."""
    return Workload(
        f"ttft_{prompt_len}",
        "ms",
        lambda prompts: (Batch.of([prompts.fresh(prompt_len)], 1) for _ in range(_REPEATS)),
        lambda _, seconds: [s * 1e3 for s in seconds],
    )


def _time_to_first_after_hit(share: float) -> Workload:
    """Milliseconds to the first token of a prompt, a share of which was computed before."""
    hit_len = int(_SHARED_LEN * share)

    def batches(prompts: Prompts) -> Iterator[Batch]:
        yield Batch.of([prompts.shared], 1)
        begun = prompts.shared[:hit_len]
        for _ in range(_REPEATS):
            yield Batch.of([begun + prompts.fresh(_SHARED_LEN - hit_len)], 1)

    return Workload(f"hit{share}", "ms", batches, lambda _, seconds: [s * 1e3 for s in seconds[1:]])


def _prefill() -> Workload:
    """Tokens of long prompts per second, 16 prompts at once."""
    return Workload(
        "prefill",
        "tok/s",
        lambda prompts: [Batch.of([prompts.fresh(8000) for _ in range(16)], 1)],
        lambda batches, seconds: [sum(map(len, batches[0].prompts)) / seconds[0]],
    )


def _mixed(*, as_list: bool = False, suffix: str = "") -> Workload:
    """Tokens out per second while many requests of all lengths come at once."""

    def batches(prompts: Prompts) -> Iterator[Batch]:
        ins, outs = mixed_lens()
        yield Batch(tuple(prompts.fresh(n) for n in ins), outs, as_list=as_list)

    return Workload(
        f"mixed{_MIXED}{suffix}",
        "tok/s",
        batches,
        lambda batches, seconds: [sum(batches[0].output_lens) / seconds[0]],
    )


def mixed_lens() -> tuple[TokenIds, TokenIds]:
    """Return how many tokens go in and come out of each request of the mixed workload."""
    random = Random(1)
    ins = [min(2048, max(16, int(random.lognormvariate(5.5, 0.9)))) for _ in range(_MIXED)]
    outs = [min(1024, max(8, int(random.lognormvariate(5.2, 0.7)))) for _ in range(_MIXED)]
    return tuple(ins), tuple(outs)


WORKLOADS: Final = (
    *(_time_per_token(size) for size in _BATCHES),
    *(_time_to_first(prompt_len) for prompt_len in _PREFILL_LENS),
    *(_time_to_first_after_hit(share) for share in _HITS),
    _prefill(),
    _mixed(),
    _time_per_token(64, sampling=DRAWN, suffix="_drawn"),
    _mixed(as_list=True, suffix="_list"),
)
"""In the order in which their prompts are drawn."""
