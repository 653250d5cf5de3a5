"""Settings that packed weights imply for an engine: its backend and its quantisation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_engine.config import (
    EngineConfig,
    GroupLen,
    Quantize,
    QuantizeGroup,
    default_group,
)
from spaninfer_engine.errors import ConfigError

GRID_NAMES: tuple[Quantize, ...] = ("int8", "int6", "int5", "int4", "int3.5", "int3", "int2")
"""Whole numbers on grids: levels at even steps, a scale and a bias of each group."""
TABLE_NAMES: tuple[Quantize, ...] = ("iq4_nl",)
"""Uneven levels of a fixed table, a scale of each group."""
ROUNDED_NAMES: tuple[Quantize, ...] = (*GRID_NAMES, *TABLE_NAMES)
"""Levels of either kind."""
WIDE_NAMES: tuple[Quantize, ...] = ("w13a13",)
"""Whole numbers of 16 bits with a sign, a scale of each group, which is no whole row."""
CPU_GROUPED: tuple[Quantize, ...] = ("w8a16", "w7a7", *WIDE_NAMES, *ROUNDED_NAMES)
"""Quantised values that share scales, and that backend cpu multiplies."""
GROUPED: tuple[Quantize, ...] = ("w4afp8", *CPU_GROUPED)
"""Quantised values that share scales."""
WAY_OUT = "use the checkpoint that was converted"


@dataclass(frozen=True, slots=True)
class Packing:
    """The format that weights of matmuls are packed in.

    quantize  what they are rounded to, or None: numbers as they are stored
    group     channels of codes that share a scale; None is a whole row
    """

    quantize: Quantize | None
    group: GroupLen | None

    def __str__(self) -> str:
        """Return it in words."""
        if self.quantize is None:
            return "numbers as they were stored"
        if self.quantize not in GROUPED:
            return self.quantize
        return f"{self.quantize} with a scale per " + (
            "row" if self.group is None else f"{self.group} channels"
        )


def number_bits(quantize: Quantize) -> float:
    """Return the bits of a quantised value, its part of a scale aside.

    >>> number_bits("int3.5"), number_bits("fp8")
    (3.5, 8.0)
    """
    known = {"bfloat16": 16.0, "w13a13": 16.0, "iq4_nl": 4.0, "w4afp8": 4.0}
    known |= dict.fromkeys(("fp8", "w8a8", "w8a16", "w7a7"), 8.0)
    return known.get(quantize) or float(quantize.removeprefix("int"))


def parameter_bits(quantize: Quantize) -> int:
    """Return the bits of a group's scale, in 32 or in 16 bits, and of a bias where there is one."""
    return 16 if quantize in ("w4afp8", *TABLE_NAMES, *WIDE_NAMES) else 32


def packing_of(quantize: Quantize | None, quantize_group: QuantizeGroup | None = None) -> Packing:
    """Return the format that these fields of EngineConfig ask for.

    >>> packing_of("int4"), packing_of("int4", "row")
    (Packing(quantize='int4', group=32), Packing(quantize='int4', group=None))
    """
    if quantize not in GROUPED:
        return Packing(quantize, None)
    group = quantize_group or default_group(quantize)
    return Packing(quantize, None if group == "row" else group)


def as_packed(asked: EngineConfig, packing: Packing) -> EngineConfig:
    """Return what was asked with what the files settle; ConfigError where the two differ."""
    if asked.backend not in (None, "cpu"):
        raise ConfigError(
            f"{asked.model} holds weights packed for backend cpu, and backend {asked.backend} was "
            f"requested; {WAY_OUT}"
        )
    if asked.device not in (None, "cpu"):
        raise ConfigError(
            f"{asked.model} holds weights packed for backend cpu, and device {asked.device} was "
            f"requested; {WAY_OUT}"
        )
    group: QuantizeGroup | None = None  # of what shares no scales
    if packing.quantize in GROUPED:
        group = "row" if packing.group is None else packing.group
    if asked.quantize not in (None, packing.quantize) or asked.quantize_group not in (None, group):
        raise ConfigError(
            f"{asked.model} holds weights packed as {packing}, and another format was requested; "
            f"leave quantize and quantize_group out, or {WAY_OUT}"
        )
    return replace(asked, backend="cpu", quantize=packing.quantize, quantize_group=group)
