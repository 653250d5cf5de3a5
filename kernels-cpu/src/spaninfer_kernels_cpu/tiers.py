"""Which instructions the kernels may use: tiers, and the one that this process uses.

portable        what LLVM makes of plain vector code, for any CPU
avx2            256-bit integers, pairs of products by vpmaddwd and vpmaddubsw
avx2_vnni       vpdpbusd on 256 bits
avx512_vnni     vpdpbusd on 512 bits
avx512_bf16     and vdpbf16ps for bfloat16 activations
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Literal

from numba.core.registry import cpu_target

from spaninfer_kernels_cpu.errors import TierError

VARIABLE = "SPANINFER_CPU_TIER"
"""Environment variable that names the tier of the process; unset, the best that the CPU has."""

ByteDot = Literal["portable", "madd", "vnni256", "vnni512"]


@dataclass(frozen=True, slots=True)
class Tier:
    """A set of instructions, and what kernels make of it.

    `needs` are LLVM's names of CPU features; on CPUs with one of `slow_on`, the tier below is
    faster. A matrix product keeps the sums of `rows` rows by `blocks` blocks of 16 outputs in
    registers: 24 of 32 with AVX-512, 12 of 16 with AVX2.
    """

    name: str
    needs: frozenset[str]
    byte_dot: ByteDot
    has_bf16_dot: bool = False
    slow_on: frozenset[str] = frozenset()
    rows: int = 6
    blocks: int = 1


_AVX2 = frozenset({"avx2", "fma"})
_AVX512_VNNI = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}

TIERS = (
    Tier("portable", frozenset(), "portable"),
    Tier("avx2", _AVX2, "madd"),
    Tier("avx2_vnni", _AVX2 | {"avxvnni"}, "vnni256"),
    Tier("avx512_vnni", _AVX512_VNNI, "vnni512", blocks=4),
    Tier(
        "avx512_bf16",
        _AVX512_VNNI | {"avx512bf16"},
        "vnni512",
        has_bf16_dot=True,
        # Intel's cores with AMX run vdpbf16ps slowly: 110 Gop/s against 172 by widening and
        # multiply-add (one core of a Xeon, 252 x 896 by 4864, 2026-11-21).
        slow_on=frozenset({"amx-bf16"}),
        blocks=4,
    ),
)
"""Every tier, the better ones last."""


@cache
def chosen() -> Tier:
    """Return the tier of this process: the one that SPANINFER_CPU_TIER names, else the best."""
    return choose(TIERS, features(), os.environ.get(VARIABLE))


def choose(tiers: tuple[Tier, ...], present: frozenset[str], forced: str | None) -> Tier:
    """Return the last of `tiers` that suits the features `present`, or the one called `forced`.

    Raises TierError if that one needs a feature that is not there, or if no tier has that name.
    """
    possible = [tier for tier in tiers if tier.needs <= present]
    if not forced:
        return [tier for tier in possible if not tier.slow_on & present][-1]
    for tier in possible:
        if tier.name == forced:
            return tier
    raise TierError(
        f"{VARIABLE} is {forced!r}, but this CPU has {', '.join(tier.name for tier in possible)}; "
        "unset it for the best of them"
    )


@cache
def features() -> frozenset[str]:
    """Return the features that Numba compiles for, by LLVM's names.

    Those of this CPU, unless NUMBA_CPU_NAME or NUMBA_CPU_FEATURES say otherwise. With a CPU's name
    alone, Numba knows no features, and the portable tier is left.
    """
    _triple, _name, text = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(part[1:] for part in text.split(",") if part.startswith("+"))
