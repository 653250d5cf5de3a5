"""A variant of a kernel: its source, the macros that size it, and its architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spaninfer_kernel_launch.source import Source

ARCHITECTURES: Final = ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")
"""The five classes that every operator has a variant for: Turing to Blackwell."""

WITH_BFLOAT16: Final = ARCHITECTURES[1:]
"""Architectures whose hardware converts bfloat16."""

BEFORE_HOPPER: Final = ARCHITECTURES[:2]
"""Architectures without clusters and without overlapping kernels."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel as it is compiled: entry point, source, macros (name, text), architectures."""

    entry: str
    source: Source
    macros: tuple[tuple[str, str], ...]
    architectures: tuple[str, ...] = ARCHITECTURES

    @classmethod
    def of(
        cls,
        entry: str,
        source: Source,
        macros: Mapping[str, str | int | bool],
        architectures: tuple[str, ...] = ARCHITECTURES,
    ) -> Variant:
        """Return the variant whose macros have these values; booleans become 1 and 0."""
        texts = tuple(
            (name, str(int(value)) if isinstance(value, bool) else str(value))
            for name, value in sorted(macros.items())
        )
        return cls(entry, source, texts, architectures)

    def __str__(self) -> str:
        """Return the entry point and the macros, for messages and test names."""
        return f"{self.entry}[{' '.join(f'{name}={text}' for name, text in self.macros)}]"

    @property
    def text(self) -> str:
        """The translation unit: all that the compiled form depends on, architecture aside."""
        return self.source.text(self.macros)
