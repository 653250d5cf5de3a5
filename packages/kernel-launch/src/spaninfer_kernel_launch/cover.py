"""A pairwise cover of variants and architectures, where compiling all would take too long."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import log2
from typing import TypeAlias

from spaninfer_kernel_launch.variant import Variant

Case: TypeAlias = tuple[Variant, str]
"""A variant and an architecture that it is for."""

_Pair: TypeAlias = tuple[tuple[str, str], tuple[str, str]]


def every_case(variants: Iterable[Variant]) -> list[Case]:
    """Return each variant with each architecture that it is for."""
    return [(variant, arch) for variant in variants for arch in variant.architectures]


def pairwise_cover(variants: Iterable[Variant], *, alone: Collection[str] = ()) -> list[Case]:
    """Return few of `every_case` in which all that meets somewhere meets: values of two macros.

    Of macros in `alone`, each value occurs with each entry point, not with each other value: names
    of those that follow from other macros, or count things that take no registers.

    The architecture and the entry point count as macros. Mistakes in a kernel mostly need two
    things to come together (Kuhn, Wallace and Gallo 2004), such as an element type and an
    architecture. The case that adds most pairs comes next: never more than ln(pairs) + 1 times as
    many as needed, the bound of greedy set covers. Of those that add as many it is the one with the
    smallest numbers, which compiles soonest: mostly they count what is unrolled.
    """
    pairs = {case: _pairs(case, alone) for case in sorted(every_case(variants), key=_size)}
    order = list(pairs)
    # Gains only shrink, so a case whose gain is up to date and at the top is the best one.
    queue = [(-len(pairs[case]), number) for number, case in enumerate(order)]
    heapify(queue)
    chosen, missing = [], set().union(*pairs.values())
    while missing:
        _, number = heappop(queue)
        gain = len(pairs[order[number]] & missing)
        if queue and queue[0] < (-gain, number):
            heappush(queue, (-gain, number))
            continue
        chosen.append(order[number])
        missing -= pairs[order[number]]
    return chosen


def value_cover(variants: Iterable[Variant]) -> list[Case]:
    """Return few of `every_case` in which each value of a macro, and each architecture, occurs with
    each entry point that has it.
    """
    variants = list(variants)
    names = {name for variant in variants for name, _ in variant.macros}
    return pairwise_cover(variants, alone={"arch", *names})


def _size(case: Case) -> float:
    """Return how large the numbers are that macros stand for, taken together."""
    return sum(log2(1 + int(text)) for _, text in case[0].macros if text.isdigit())


def _pairs(case: Case, alone: Collection[str]) -> set[_Pair]:
    variant, arch = case
    values = ("arch", arch), ("entry", variant.entry), *variant.macros
    pairs = combinations((value for value in values if value[0] not in alone), 2)
    return {*pairs, *((("entry", variant.entry), value) for value in values)}
