"""Times from the start of a process to its first token: with nothing compiled yet, and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import typer
from spaninfer_engine import ConfigError

from spaninfer.bench.engine import Note
from spaninfer.bench.records import circumstances, summary

STARTUPS: Final = ("startup_first", "startup_cached")

_CACHES = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
"""Where what compiles at run time keeps its results (docs/environment.md)."""


def measure_startup(options: Mapping[str, Any], runs: int, note: Note) -> Iterator[dict[str, Any]]:
    """Yield both records of an engine with these fields of EngineConfig."""
    with TemporaryDirectory() as caches:
        environment = os.environ | {name: f"{caches}/{name}" for name in _CACHES}
        first, answer = _seconds(options, environment)
        cached = [_seconds(options, environment)[0] for _ in range(runs)]
    place = circumstances(answer["device"])
    for workload, values in zip(STARTUPS, ([first], cached), strict=True):
        fields = summary("s", values)
        note(f"{workload}: {fields['median']:,} s")
        yield {
            "benchmark": "engine",
            "workload": workload,
            **answer["engine"],
            **fields,
            **place,
        }


def _seconds(
    options: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[float, dict[str, Any]]:
    """Return the time to the first token, and what the process says of its engine."""
    command = (sys.executable, "-m", "spaninfer.bench.first_token", json.dumps(options))
    begin = perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,  # so that Ctrl-C reaches it through us, and it has no last words
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        except KeyboardInterrupt:
            process.kill()
            raise
        seconds = perf_counter() - begin
    if process.returncode == 2:  # its own sentence stands on standard error
        raise typer.Exit(2)
    if not line:
        raise ConfigError(
            f"an engine with these options did not start: its process ended with "
            f"{process.returncode}, see above"
        )
    return seconds, json.loads(line)
