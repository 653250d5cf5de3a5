"""Performance targets and competitors' figures: a TOML file, matched to records.

    [[table]]
    of = { benchmark = "engine", model = "qwen2.5-7b", device = "NVIDIA H200" }
    bars = [
        { workload = "tpot_bs1", reach = 3.8, peers = { "vLLM 0.24.0" = 4.73 } },
    ]

`of` and the row hold fields of records; a bar is for the records in which all of them agree.
Numbers are in the record's unit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spaninfer_engine import ConfigError

from spaninfer.bench.records import Record, is_rate


@dataclass(frozen=True, slots=True)
class Bar:
    """The records it is for, the value they should reach, and what peers reached."""

    of: Mapping[str, Any]
    reach: float | None
    peers: Mapping[str, float] = field(default_factory=dict)

    def fits(self, record: Record) -> bool:
        """Return True if this target is about the record."""
        return all(record.get(name) == value for name, value in self.of.items())

    def is_reached(self, record: Record) -> bool | None:
        """Return True if the record reaches the target; None where there is none."""
        if self.reach is None:
            return None
        median = float(record["median"])
        return median >= self.reach if is_rate(record) else median <= self.reach


def read_bars(path: Path) -> tuple[Bar, ...]:
    """Return the bars of a file; ConfigError where it is not what the module's docstring shows."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))["table"]
        rows = [{**table["of"], **row} for table in tables for row in table["bars"]]
    except OSError as missing:
        raise ConfigError(f"{path} cannot be read: {missing.strerror}") from missing
    except (ValueError, KeyError, TypeError) as broken:
        raise ConfigError(f"{path} is not a file of targets: {broken!r}") from broken
    return tuple(_bar(path, row) for row in rows)


def find_bar(bars: Sequence[Bar], record: Record) -> Bar | None:
    """Return the first bar that is for the record, or None."""
    return next((bar for bar in bars if bar.fits(record)), None)


def _bar(path: Path, row: dict[str, Any]) -> Bar:
    reach, peers = row.pop("reach", None), row.pop("peers", {})
    of_peers = peers.values() if isinstance(peers, dict) else (peers,)
    numbers = [*of_peers, *([] if reach is None else [reach])]
    if not numbers or not all(isinstance(number, int | float) for number in numbers):
        raise ConfigError(f"{path}: a target needs reach or peers, as numbers; got {row}")
    return Bar(row, reach, peers)
