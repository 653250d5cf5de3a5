"""The ceilings: bytes that this machine reads from memory, and GEMMs it does in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spaninfer_kernels_cpu import Kind, peak_gops, read_gbps

from spaninfer.bench.records import summary

KINDS: Final[tuple[Kind, ...]] = ("float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Limits:
    """Runs of a read of memory (GB/s), and of GEMMs per kind of weights (Gop/s)."""

    read: tuple[float, ...]
    peaks: Mapping[Kind, tuple[float, ...]]

    @property
    def read_gbps(self) -> float:
        """The best of the runs: others had company."""
        return max(self.read)

    def peak_gops(self, kind: Kind) -> float:
        """The best of the runs."""
        return max(self.peaks[kind])


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of something; `kind` says which products in registers bound it."""

    kind: Kind
    num_bytes: int  # of weights, or of keys and values: read once
    operations: int  # a multiplication and an addition are two

    def rates(self, seconds: float, limits: Limits) -> dict[str, float]:
        """Return bytes and operations per second, and the larger of their shares of the limits."""
        gbps, gops = self.num_bytes / seconds / 1e9, self.operations / seconds / 1e9
        share = max(gbps / limits.read_gbps, gops / limits.peak_gops(self.kind))
        return {"gbps": round(gbps, 2), "gops": round(gops, 2), "of_ceiling": round(share, 3)}


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
