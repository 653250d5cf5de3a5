"""Programs timed at a workload in turns, while the CPUs are as many cores as they seem to be.

On a host that others use, the CPUs of a virtual machine are threads that the host moves about: two
of them may lie on one core for a while and share what multiplies (1,500 against 756 to 1,195 Gop/s
of int8 on a Xeon, within seconds). Who multiplies most loses most by that, so such rounds tell
nothing about a ratio on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import sleep
from typing import Final

from spaninfer_kernels_cpu import Kind, peak_gops

from spaninfer.bench.workloads import Batch, Prompts, Workload

Program = Callable[[Batch], float]  # seconds of a batch

_SETTLE_S: Final = 0.1  # threads of several programs spin for a while after a step
_WHOLE: Final = 0.8  # of the best rate of GEMMs: half to three quarters of it is what a core
# for two threads gives; a clock that breathes gives more
_MAX_ROUNDS: Final = 3  # times as many as wanted
_WARM_TOKENS: Final = 8  # of each answer, in the round that does not count


class Cores:
    """The CPUs of this process, and the most they ever multiplied weights of a kind with."""

    def __init__(self, kind: Kind, measure: Callable[[Kind], float] = peak_gops) -> None:
        self._kind: Kind = kind
        self._measure = measure
        self._best = 0.0

    def are_whole(self) -> bool:
        """Return True if the CPUs multiply as fast as at the start, or nearly so."""
        now = self._measure(self._kind)
        self._best = max(self._best, now)
        return now >= _WHOLE * self._best


@dataclass(frozen=True, slots=True)
class Turns:
    """Values of the rounds that count, by program, and how many rounds were left out."""

    values: Mapping[str, list[float]]
    left_out: int


def in_turns(
    workload: Workload, programs: Mapping[str, Program], vocab: int, runs: int, cores: Cores
) -> Turns:
    """Return every program's values in `runs` rounds, after a short one that does not count.

    Each round has prompts of its own, the same for all programs; who begins changes from round to
    round. A round counts where the cores are whole before and after it. If that is rare, it does
    not matter any more as soon as only enough of three times as many rounds are left.
    """
    values: dict[str, list[float]] = {program: [] for program in programs}
    whole, left_out = cores.are_whole(), 0
    for round_number in range(1 + _MAX_ROUNDS * runs):
        (batch,) = workload.batches(Prompts(vocab, round_number))
        if round_number == 0:
            batch = Batch.of(batch.prompts, min(batch.output_lens[0], _WARM_TOKENS))
        taken = {}
        for program in sorted(programs, reverse=round_number % 2 == 0):
            sleep(_SETTLE_S)
            taken[program] = programs[program](batch)
        before, whole = whole, cores.are_whole()
        if round_number == 0:
            continue
        if not (before and whole) and left_out < (_MAX_ROUNDS - 1) * runs:
            left_out += 1
            continue
        for program, seconds in taken.items():
            values[program] += workload.values((batch,), (seconds,))
        if len(values[program]) == runs:
            break
    return Turns(values, left_out)
