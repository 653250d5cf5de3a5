"""Tuning of GEMM kernels: the candidates for a weight format, and the choice by measurements. Pure.

Every ISA level reads the same packed weights, so the micro-kernels of a product can be chosen when
the model is loaded. What a CPU has says which of them run, not which of them is fastest: Zen 4
executes 512 bits in two halves, and software prefetch helps some cores and hinders others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from spaninfer_kernels_cpu.codegen.isa_level import IsaLevel
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import (
    AHEAD,
    MicroKernels,
    medium_tile,
    small_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import Format
from spaninfer_kernels_cpu.quantisation.packed import Packed

FEW_ROWS = (1, 4, 8)
MANY_ROWS = (64,)
ROWS = (*FEW_ROWS, *MANY_ROWS)
"""Rows of the products that are timed: decodes of one and of some requests, a prompt."""

MARGIN = 0.05
"""Gain below which the default stays: times of one kernel differ by 1 to 3 % on a quiet machine."""

BOUND = 2.0**-10
"""Largest difference from the default's results, in parts of their largest. Quantised weights give
equal bits in every candidate that quantises activations; products of bfloat16 pairs round otherwise
than wide ones."""
EXPANDED_BOUND = 2.0**-6
"""The same where one of the two expands codes: activations of 8 bits are 127ths of the largest of a
group, and so are bytes."""

_PREFETCHES = ((0, False), (2 * AHEAD, True), (2 * AHEAD, False), (AHEAD, False))
"""Bytes ahead, and whether into the second cache only: what is best differs by format on a Zen 4,
whose first cache waits for 24 lines at a time, the second for more."""

_TILE_ROWS = (4, 6, 8)  # divisors of ROWS_PER_TASK that registers of some level hold
_EXPANDED_ROWS = (3, 4)
_FIRST_TILE_ROWS = 4
"""Of the tile that is timed with the first prefetch: few rows use the one, many the other, and the
budget often ends before tiles have their turn. 128 rows of Q4_0: 305 Gop/s a thread with four rows,
284 with six, 238 with eight (Zen 4)."""

Seconds = Mapping[int, float]
"""Seconds of a product, by rows."""


_Part: TypeAlias = Callable[[MicroKernels], object]
"""The micro-kernels that some numbers of rows use."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Micro-kernels by name; the name differs between the candidates of a format."""

    name: str
    micro: MicroKernels


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidates: for few rows, and for many."""

    few: Candidate
    many: Candidate

    @property
    def micro(self) -> MicroKernels:
        """Their micro-kernels."""
        return replace(self.few.micro, many=self.many.micro.many)


def candidates(
    format: Format, *, rounded: bool, levels: Sequence[IsaLevel]
) -> tuple[Candidate, ...]:
    """Return the ways to multiply weights of a format, the default of the first level first.

    Then its other prefetches, those of the other levels, and tile shapes of the first; each pair of
    micro-kernels once.
    """
    found: dict[MicroKernels, str] = {}
    for name, micro in _named(format, rounded, levels):
        found.setdefault(micro, name)
    return tuple(Candidate(name, micro) for micro, name in found.items())


def _named(
    format: Format, rounded: bool, levels: Sequence[IsaLevel]
) -> Iterator[tuple[str, MicroKernels]]:
    first, *others = levels
    micro = MicroKernels.of(format, rounded=rounded, level=first)
    yield first.name, micro
    has_tiles = not (micro.many.uses_amx or micro.many.unpacks or micro.many.expands)
    for ahead, far in _PREFETCHES:
        way = f"prefetch of {ahead} B to L{2 if far else 1}" if ahead else "no prefetch"
        one, many = replace(micro.one, ahead=ahead, far=far), micro.many
        small = small_tile(one, many, first)
        if has_tiles and ahead == 0 and (micro.one.ahead > 0 or first.core.ahead == 0):
            way, many = (
                f"{way}, tile of {_FIRST_TILE_ROWS} rows",
                replace(many, rows=_FIRST_TILE_ROWS),
            )
        medium = medium_tile(small, format, first)
        yield f"{first.name}, {way}", MicroKernels(one, small, medium, many)
    for level in others:
        yield level.name, MicroKernels.of(format, rounded=rounded, level=level)
    shapes = _TILE_ROWS if has_tiles else _EXPANDED_ROWS if micro.many.expands_to_bytes else ()
    for rows in shapes:
        many = replace(micro.many, rows=rows)
        yield f"{first.name}, tile of {rows} rows", replace(micro, many=many)


def choose(found: Sequence[Candidate], seconds: Mapping[str, Seconds]) -> Choice:
    """Return the fastest candidates, by `seconds` of those whose results are right.

    Few and many rows are chosen apart where both read the same prepared activations and add in
    the same order. Nothing becomes slower than with the first candidate, the default, by more than
    the margin; without its times, it is chosen.
    """
    default, *_ = found
    if default.name not in seconds:
        return Choice(default, default)
    timed = [each for each in found if each.name in seconds]
    few = _fastest(timed, _for_few, seconds, FEW_ROWS)
    many = _fastest(timed, _for_many, seconds, MANY_ROWS)
    if _go_together(few.micro.one, many.micro.many):
        return Choice(few, many)
    whole = _fastest(timed, _whole, seconds, ROWS)
    return Choice(whole, whole)


def bound_of(candidate: Candidate, default: Candidate) -> float:
    """Return how much the results of a candidate may differ from the default's."""
    one, other = candidate.micro.many, default.micro.many
    ways = one.expands, other.expands, one.has_whole_scales, other.has_whole_scales
    is_alike = one.isa_path == other.isa_path or not any(ways)
    return BOUND if is_alike else EXPANDED_BOUND


def relative(name: str, default: str, seconds: Mapping[str, Seconds], rows: Sequence[int]) -> float:
    """Return the geometric mean, over these numbers of rows, of a candidate's time by the
    default's.
    """
    ratios = [seconds[name][each] / seconds[default][each] for each in rows]
    return float(prod(ratios) ** (1 / len(ratios)))


def _fastest(
    timed: Sequence[Candidate], part: _Part, seconds: Mapping[str, Seconds], rows: Sequence[int]
) -> Candidate:
    """Return the candidate with the least times together, none of them above the default's.

    Candidates that are the default in the `part` that these rows use tell how far times of one
    kernel differ here, as they do on a busy machine; a gain must be larger.
    """
    default, *others = timed

    def ratio(each: Candidate, some: Sequence[int]) -> float:
        return relative(each.name, default.name, seconds, some)

    alike = [ratio(each, rows) for each in others if part(each.micro) == part(default.micro)]
    margin = max([MARGIN, *(1 - min(each, 1 / each) for each in alike)])
    able = [
        each
        for each in _distinct(timed, part)
        if all(ratio(each, [one]) <= 1 + MARGIN for one in rows)
    ]
    best = min(able, key=lambda each: ratio(each, rows))
    return best if ratio(best, rows) < 1 - margin else default


def _distinct(timed: Sequence[Candidate], part: _Part) -> list[Candidate]:
    """Return the first of the candidates that are alike in a part, whose times differ by chance."""
    found: dict[object, Candidate] = {}
    for each in timed:
        found.setdefault(part(each.micro), each)
    return list(found.values())


def _for_few(micro: MicroKernels) -> object:
    return micro.one, micro.small, micro.medium


def _for_many(micro: MicroKernels) -> object:
    return micro.many


def _whole(micro: MicroKernels) -> object:
    return micro


def _go_together(one: MicroKernel, many: MicroKernel) -> bool:
    """Return True if a row has the same activations and the same sums alone and among others.

    Codes that many rows expand take other activations in any case, which are prepared apart.
    """
    if many.expands:
        return True
    is_alike = _prepared(one) == _prepared(many)
    return is_alike and (one.is_quantised or one.isa_path == many.isa_path)


def _prepared(micro: MicroKernel) -> object:
    """Return what activations are prepared by."""
    return micro.row_bytes, micro.parts, micro.has_whole_scales


def weights_within(weights: Sequence[Packed], num_bytes: int) -> Iterator[Packed]:
    """Yield weights of every shape, then more, of that many bytes together; one at least.

    Those that no longer fit are passed over: a head alone may have more bytes, and without the rest
    the small weights would be timed from caches.
    """
    shapes = {weight.layout: weight for weight in reversed(weights)}
    rest = [weight for weight in weights if shapes[weight.layout] is not weight]
    left = num_bytes
    for number, weight in enumerate(sorted(shapes.values(), key=_size) + rest):
        if number == 0 or _size(weight) <= left:
            left -= _size(weight)
            yield weight


def _size(weight: Packed) -> int:
    return weight.panels.nbytes


def is_within(spent_s: float, longest_s: float, budget_s: float) -> bool:
    """Return True if one more candidate, which takes as long as the longest, is within budget."""
    return spent_s + longest_s <= budget_s
