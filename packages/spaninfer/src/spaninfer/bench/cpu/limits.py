"""The ceilings: bytes that this machine reads from memory, and products it does in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spaninfer_kernels_cpu import Kind, peak_gops, read_gbps

from spaninfer.bench.records import summary

KINDS: Final[tuple[Kind, ...]] = ("float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Limits:
    """Runs of a read of memory (GB/s), and of products per kind of weights (Gop/s)."""

    read: tuple[float, ...]
    peaks: Mapping[Kind, tuple[float, ...]]

    @property
    def read_gbps(self) -> float:
        """The best of the runs: others had company."""
        return max(self.read)

    def peak_gops(self, kind: Kind) -> float:
        """The best of the runs."""
        return max(self.peaks[kind])


def measure_limits(runs: int) -> Limits:
    """Return what every usable CPU together gives; activations of bfloat16 weights are rounded."""
    return Limits(
        tuple(read_gbps() for _ in range(runs)),
        {
            kind: tuple(peak_gops(kind, rounded=kind == "bfloat16") for _ in range(runs))
            for kind in KINDS
        },
    )


def records(limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the ceilings as fields of records."""
    yield {"benchmark": "ceiling", "ceiling": "read", **summary("GB/s", limits.read)}
    for kind, runs in limits.peaks.items():
        about = f"products of {kind} weights in registers"
        yield {"benchmark": "ceiling", "ceiling": about, **summary("Gop/s", runs)}
