"""ISA levels: sets of instructions that kernels may use, and the one of this process.

portable        what LLVM makes of plain vector code, for any CPU
neon_i8mm       on Arm, usdot; and bfdot for bfloat16 activations
avx2            256-bit integers, pairs of products by vpmaddwd and vpmaddubsw
avx2_vnni       vpdpbusd on 256 bits
avx512_vnni     vpdpbusd on 512 bits
avx512_bf16     and vdpbf16ps for bfloat16 activations
amx_bf16        and tiles (`amx`) for bfloat16, for many rows of int8 with a scale per output, and
                for many of other codes, expanded to bfloat16
amx             and tiles for several rows of quantised values
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from numba.core.registry import cpu_target

from spaninfer_kernels_cpu.codegen import amx
from spaninfer_kernels_cpu.errors import IsaLevelError

VARIABLE = "SPANINFER_CPU_TIER"
"""Environment variable that names the ISA level; unset, it is the best that the CPU has."""

ByteDot = Literal["portable", "usdot", "madd", "vnni256", "vnni512"]
Bf16Dot = Literal["bfdot", "vdpbf16ps"]


@dataclass(frozen=True, slots=True)
class Core:
    """The choices that suit the cores of a CPU, whatever their instructions; defaults are Intel's.

    ahead          bytes ahead that rows of few tokens ask for weights; 0: not at all
    far            into the L2 cache, but for one row by codes of 8 bits
    rows           rows of a tile of numbers, which is as wide as a panel
    code_tile      rows and blocks of a tile of codes, as wide as a panel or half as wide
    expanded_rows  the same of one that multiplies by codes expanded to bytes
    paced          five to eight rows go over a panel once, at an even pace, instead of twice
    """

    ahead: int = 4096
    far: bool = False
    rows: int = 6
    code_tile: tuple[int, int] = (6, 4)
    expanded_rows: int = 4
    paced: bool = False


@dataclass(frozen=True, slots=True)
class IsaLevel:
    """A set of instructions, and what kernels make of it.

    `needs` are LLVM's names of CPU features; on CPUs with one of `slow_on`, or of that name, the
    ISA level below is faster. A GEMM keeps the sums of `rows` rows by `blocks` blocks of 16
    outputs in registers: 24 of 32 with AVX-512 and NEON, 12 of 16 with AVX2. Weights of the kinds
    in `tiles` take those of AMX instead (`amx_tile`), and of those in `tiles_of_rows` if an output
    has one scale: then sums of tiles leave them once, not after every group of channels. With
    `expands`, many rows of other codes take those of bfloat16, or codes of fewer than 8 bits become
    bytes with fewer scales. With `by_parts`, many rows of float32 take a panel's channels in parts
    (`channel_parts`). `core` follows from the CPU's name, and makes no other level.
    """

    name: str
    needs: frozenset[str]
    byte_dot: ByteDot
    bf16_dot: Bf16Dot | None = None
    tiles: frozenset[str] = frozenset()
    tiles_of_rows: frozenset[str] = frozenset()
    expands: Literal["tiles", "bytes"] | None = None
    slow_on: frozenset[str] = frozenset()
    rows: int = 6
    blocks: int = 1
    by_parts: bool = False
    core: Core = field(default=Core(), compare=False)

    @property
    def wide_dot(self) -> ByteDot:
        """The products of bytes with activations of 16 bits."""
        return "portable" if self.byte_dot in ("portable", "usdot") else "madd"


PERMITTED = "tiles-permitted"
"""Not an LLVM feature: the system lets this process use tiles."""

CORES = {
    "znver4": Core(ahead=0, code_tile=(6, 2), expanded_rows=3),
    "znver5": Core(ahead=8192, rows=4, code_tile=(6, 2), paced=True),
    "amx-tile": Core(ahead=8192, far=True, paced=True),
}
"""By LLVM's names of CPUs, or by a feature.

A Zen 4 reads memory faster by itself than by prefetch into the L1 cache: one row of Q4_0 at 28 GB/s
instead of 15, of Q4_K at 24 instead of 14 (one core). A Zen 5 does not: Q4_K 18 GB/s, with prefetch
29; Q4_0 31 both ways; bfloat16 37 and 44 (one core). Its tiles of codes leave registers for the
ends of a group: int8 per row, 512 rows of 1,536 by 384, 687 Gop/s by 4 rows and 4 blocks, 784 by 6
and 4, 839 by 6 and 2; numbers are within 3 %, but for bfloat16 by pairs, 463 by 4 and 4, 418 by 6
and 2 (one core).

A Xeon with AMX has more lines on their way to its L2 than to its L1. Tokens a second of
Qwen3-0.6B's shape (Granite Rapids, two CPUs), one request, 4 KB ahead into the L1 and 8 into the
L2: Q4_0 63 and 70, Q4_K 61 and 69, Q6_K 46 and 51, IQ4_XS 63 and 72; Q8_0 39 and 39, 8 KB ahead
into the L1 41. Eight requests by two tiles of four, by one of eight, and paced: Q4_0 333, 316 and
371, Q4_K 296, 303 and 353, Q8_0 225, 221 and 255.
"""

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512_VNNI = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}
_AMX = _AVX512_VNNI | {"avx512bf16", "amx-tile", "amx-int8", "amx-bf16", PERMITTED}

ISA_LEVELS = (
    IsaLevel("portable", frozenset(), "portable"),
    IsaLevel("neon_i8mm", frozenset({"neon", "i8mm", "bf16"}), "usdot", bf16_dot="bfdot"),
    IsaLevel("avx2", _AVX2, "madd", by_parts=True),
    IsaLevel("avx2_vnni", _AVX2 | {"avxvnni"}, "vnni256"),
    IsaLevel("avx512_vnni", _AVX512_VNNI, "vnni512", expands="bytes", blocks=4),
    IsaLevel(
        "avx512_bf16",
        _AVX512_VNNI | {"avx512bf16"},
        "vnni512",
        bf16_dot="vdpbf16ps",
        # Intel's cores with AMX run vdpbf16ps slowly: 110 Gop/s against 172 by widening and
        # multiply-add (one core of a Xeon, 252 x 896 by 4864, 2026-11-21). Virtual machines may
        # hide tiles, but not what the core is: prompts of a 0.5B model 217 against 335 tokens per
        # second (two CPUs, 2026-11-22).
        slow_on=frozenset({"amx-bf16", "sapphirerapids", "emeraldrapids"}),
        expands="bytes",
        blocks=4,
    ),
    IsaLevel(
        "amx_bf16",
        _AMX,
        "vnni512",
        tiles=frozenset({"bfloat16"}),
        tiles_of_rows=frozenset({"int8"}),
        expands="tiles",
        blocks=4,
    ),
    IsaLevel(
        "amx",
        _AMX,
        "vnni512",
        tiles=frozenset({"bfloat16", "int8", "int4"}),
        # Codes in groups of 32, 256 rows: 98 to 154 Gop/s a core against 302 to 360 by vpdpbusd.
        # Scaling between two groups takes longer than their products (decision 0027).
        slow_on=frozenset({"amx-int8"}),
        blocks=4,
    ),
)
"""Every ISA level, the better ones last."""


@cache
def active_level() -> IsaLevel:
    """Return the ISA level of this process: what SPANINFER_CPU_TIER names, else the best."""
    return _as_here(choose(ISA_LEVELS, present(), os.environ.get(VARIABLE)))


def present() -> frozenset[str]:
    """Return the features that kernels may use: those of the CPU, and what the system permits."""
    asked = "amx-tile" in features() and amx.permitted()
    return features() | {PERMITTED} if asked else features()


def possible_levels() -> tuple[IsaLevel, ...]:
    """Return the ISA levels that this CPU has, the active one first, then the better ones.

    The active one alone where SPANINFER_CPU_TIER names it; never "portable" beside others.
    """
    active, features = active_level(), present()
    if os.environ.get(VARIABLE):
        return (active,)
    others = [level for level in reversed(ISA_LEVELS) if level.needs <= features and level.needs]
    return (active, *(_as_here(level) for level in others if level != active))


def _as_here(level: IsaLevel) -> IsaLevel:
    """Return a level as this CPU computes best."""
    return replace(level, core=core_of(features()))


def core_of(features: frozenset[str]) -> Core:
    """Return what suits the CPU whose name is among the features."""
    named = [core for name, core in CORES.items() if name in features]
    return named[0] if named else Core()


def choose(levels: tuple[IsaLevel, ...], features: frozenset[str], forced: str | None) -> IsaLevel:
    """Return the last of `levels` that suits these features, or the one called `forced`.

    Raises IsaLevelError if that one needs a feature that is not there, or if there is none of
    that name.
    """
    possible = [level for level in levels if level.needs <= features]
    if not forced:
        return [level for level in possible if not level.slow_on & features][-1]
    for level in possible:
        if level.name == forced:
            return level
    raise IsaLevelError(
        f"{VARIABLE} is {forced!r}, but this CPU has "
        f"{', '.join(level.name for level in possible)}; unset it for the best of them"
    )


def require_float16() -> None:
    """Raise IsaLevelError unless this CPU converts float16.

    On x86 without F16C each number is a call, which is not even there for compiled kernels.
    """
    if platform.machine() in ("x86_64", "AMD64") and "f16c" not in features():
        raise IsaLevelError(
            "this CPU has no instructions for float16 (F16C); use bfloat16 or float32"
        )


@cache
def features() -> frozenset[str]:
    """Return the features that Numba compiles for, and the CPU's name, all as LLVM calls them.

    Those of this CPU, unless NUMBA_CPU_NAME or NUMBA_CPU_FEATURES say otherwise. With a CPU's name
    alone, Numba knows no features, and the portable ISA level is left.
    """
    _triple, name, text = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(part[1:] for part in text.split(",") if part.startswith("+")) | {name}
