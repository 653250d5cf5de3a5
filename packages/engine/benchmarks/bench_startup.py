"""Time from the start of a process to its first token: one JSON line per kind of start.

    python benchmarks/bench_startup.py [MODEL]

"first" begins with no compiled kernels on disk, "warm" with those that the first one left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

ROUNDS = 5
PROGRAM = """
import sys
from spaninfer_engine import Engine, SamplingParams
with Engine(sys.argv[1]) as engine:
    handle, queue = engine.start_request("Once upon a time", SamplingParams(max_tokens=1))
    queue.get()
    print("token", flush=True)
"""


def main() -> None:
    """Print both records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="demo")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as kernels:
        environment = os.environ | {"NUMBA_CACHE_DIR": kernels}
        first = _seconds(model, environment)
        warm = [_seconds(model, environment) for _ in range(ROUNDS)]
    for kind, values in (("first", [first]), ("warm", warm)):
        record = {
            "benchmark": "startup",
            "model": model,
            "start": kind,
            "first_token_s": round(statistics.median(values), 3),
            "slowest_s": round(max(values), 3),
            "python": platform.python_version(),
            "machine": platform.processor() or platform.machine(),
            "version": version("spaninfer-engine"),
        }
        print(json.dumps(record), flush=True)


def _seconds(model: str, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, model], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"token\n"
        return time.perf_counter() - begin


if __name__ == "__main__":
    main()
