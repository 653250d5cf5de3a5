"""Tuned GEMM kernels of a model: collected while it is bound, timed before the first step."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from spaninfer_kernels_cpu import (
    Compilers,
    Format,
    MicroKernels,
    OnProgress,
    Packed,
    Seconds,
    Trial,
    Tuned,
    shared_thread_pool,
    thread_times,
    tune,
)

_log = logging.getLogger(__name__)

BUDGET_S = 10.0
MIN_BYTES = 64 << 20
"""Of a model's weights: with fewer, a step takes a few milliseconds and caches hold the half."""
MIN_SHARE = 0.05
"""Of a model's weights in one format: kernels of the others are not worth their compilation."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Weights that one choice is made for."""

    format: Format
    rounded: bool


class GemmTuner:
    """The micro-kernels that GEMMs with a model's weights use.

    `asked`: whether to take times; None is for models of MIN_BYTES or more. Until `run`, and for
    weights that were not worth it, those of the ISA level are used.
    """

    def __init__(self, asked: bool | None = None) -> None:
        self._asked = asked
        self._weights: dict[_Key, dict[int, Packed]] = {}  # by address of the panels
        self._chosen: dict[_Key, MicroKernels] = {}

    def note(self, weight: Packed, *, rounded: bool) -> None:
        """Count a weight among those that GEMMs read."""
        key = _Key(weight.layout.format, rounded)
        self._weights.setdefault(key, {})[weight.panels.ctypes.data] = weight

    def micro(self, format: Format, *, rounded: bool) -> MicroKernels | None:
        """Return the choice for a format; None is that of the ISA level."""
        return self._chosen.get(_Key(format, rounded))

    def run(
        self,
        compilers: Compilers,
        on_progress: OnProgress,
        *,
        budget_s: float = BUDGET_S,
        anew: bool = False,
    ) -> tuple[Tuned, ...]:
        """Choose kernels for every format, from the cache's times unless `anew`; return all times.

        Nothing is done without weights that are worth it, and where `asked` is False.
        """
        keys = list(self._worthwhile())
        done = []
        for key in keys:
            trial = self._trial(key, compilers)
            tuned = tune(trial, budget_s / len(keys), on_progress, anew=anew)
            choice = tuned.choice
            self._chosen[key] = choice.micro
            few, many = choice.few.name, choice.many.name
            _log.info("GEMM kernels for %s: few rows %s, many %s", key.format, few, many)
            done.append(tuned)
        return tuple(done)

    def thread_times(self, tuned: Tuned, compilers: Compilers) -> dict[int, Seconds]:
        """Return the times of the chosen kernels by threads, then by rows."""
        key = next(key for key in self._weights if key.format == tuned.format)
        return thread_times(self._trial(key, compilers), tuned)

    def end(self) -> None:
        """Forget the weights: what is chosen stays."""
        self._weights.clear()

    def _trial(self, key: _Key, compilers: Compilers) -> Trial:
        weights = tuple(self._weights[key].values())
        return Trial(weights, key.rounded, shared_thread_pool(), compilers)

    def _worthwhile(self) -> Iterator[_Key]:
        """Yield the weights that are worth it, the most bytes first."""
        sizes = {key: sum(map(_size, each.values())) for key, each in self._weights.items()}
        total = sum(sizes.values())
        if self._asked is False or (self._asked is None and total < MIN_BYTES):
            return
        for key in sorted(sizes, key=lambda each: -sizes[each]):
            if sizes[key] >= MIN_SHARE * total:
                yield key


def _size(weight: Packed) -> int:
    return weight.panels.nbytes
