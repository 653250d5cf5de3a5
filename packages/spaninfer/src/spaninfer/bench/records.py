"""Measurements as JSON lines: what was measured, its runs, and where that was."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from spaninfer_engine import ConfigError
from spaninfer_host_limits import cpu_name

from spaninfer.facts import versions

Record = Mapping[str, Any]

MEASURED: Final = (
    *("median", "least", "most", "runs", "gbps", "gops", "tflops", "of_ceiling"),
    *("kl", "kl_peer", "kl_model", "kl_tokens", "left_out"),
    *("requests", "held", "of_plain", "cpu_of_plain", "cpu_ms", "p99"),
)
"""Fields that differ from run to run."""

CIRCUMSTANCES: Final = (
    *("settings", "device", "cpu", "cores", "threads", "cpus", "physical_cores", "tier"),
    *("peer_instructions", "load", "beside", "versions", "commit", "date"),
)
"""Fields that say where and with what, not what."""

_VERSIONS = ("spaninfer", "torch", "numpy", "numba", "cuda-bindings", "llama-cpp-python")


def summary(unit: str, runs: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a measurement: its unit, median and range of the runs, and all of them.

    >>> summary("ms", [3.0, 1.0, 2.5])
    {'unit': 'ms', 'median': 2.5, 'least': 1.0, 'most': 3.0, 'runs': [3.0, 1.0, 2.5]}
    """
    shown = [float(f"{run:.5g}") for run in runs]
    return {
        "unit": unit,
        "median": float(f"{median(runs):.5g}"),
        "least": min(shown),
        "most": max(shown),
        "runs": shown,
    }


def circumstances(device: str) -> dict[str, Any]:
    """Return what makes two records comparable; `device` is "cpu" or torch's name of a GPU."""
    return {
        "device": _name_of(device),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), **versions(_VERSIONS)},
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load() -> float | None:
    """Return the system's mean load of the last minute; None where it keeps none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def read(path: Path) -> list[Record]:
    """Return the records of a file, in order; ConfigError where it holds none, or anything else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as missing:
        raise ConfigError(f"{path} cannot be read: {missing.strerror}") from missing
    except UnicodeDecodeError as other:
        raise ConfigError(f"{path} is not a file of records: it is not text") from other
    found = [_parsed(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{path} holds no records")
    return found


def subject(record: Record) -> tuple[tuple[str, Any], ...]:
    """Return what a record is about: its fields without numbers that were measured, and places."""
    return tuple(
        (name, json.dumps(value) if isinstance(value, list | dict) else value)
        for name, value in record.items()
        if name not in MEASURED and name not in CIRCUMSTANCES
    )


def family(record: Record) -> tuple[str, str]:
    """Return the table that a record belongs to: the benchmark, and its model or kernel.

    >>> family({"benchmark": "kernel", "kernel": "topk", "rows": 1})
    ('kernel', 'topk')
    """
    return str(record["benchmark"]), str(record.get("model", record.get("kernel", "")))


def is_rate(record: Record) -> bool:
    """Return True if more is better: rates, "times" as fast as another, answers that are right."""
    return str(record["unit"]).endswith(("/s", "times", "right"))


def title(record: Record, leave_out: Iterable[str] = ()) -> str:
    """Return what a record is about, for people."""
    hidden = {"benchmark", "unit", *leave_out}
    return " ".join(
        str(value) if isinstance(value, str) else f"{name}={value}"
        for name, value in subject(record)
        if name not in hidden
    )


def commit() -> str:
    """Return the commit of the checkout this file is in; empty outside of one."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _parsed(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as broken:
        raise ConfigError(f"{path}, line {number} is not JSON: {broken}") from broken
    if not isinstance(record, dict) or not _is_record(record):
        raise ConfigError(
            f"{path}, line {number} is not a record of `spaninfer bench`: expected "
            "benchmark and unit, and the numbers median, least and most"
        )
    return record


def _is_record(fields: Record) -> bool:
    named = all(isinstance(fields.get(name), str) for name in ("benchmark", "unit"))
    return named and all(
        isinstance(fields.get(name), int | float) for name in ("median", "least", "most")
    )


def _name_of(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name(device)
