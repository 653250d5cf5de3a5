"""A server in a process of its own, on loopback, for what is measured through HTTP."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spaninfer_engine import ConfigError

_READY = re.compile(r"playground\s+http://([\d.]+):(\d+)/")


@contextmanager
def server_process(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Start a server on a free port of loopback, and stop it in the end."""
    command = [
        sys.executable,
        "-m",
        "spaninfer",
        "serve",
        *arguments,
        "--host=127.0.0.1",
        "--quiet",
    ]
    process = subprocess.Popen([*command, "--port=0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := _READY.search(line):
                break
        else:
            raise ConfigError(f"the server did not start: {''.join(said).strip()}")
        with _drained(process):
            yield process, found[1], int(found[2])
    finally:
        process.kill()
        process.wait()


@contextmanager
def _drained(process: subprocess.Popen[str]) -> Iterator[None]:
    """Discard further output of the process, which a full pipe would block."""
    assert process.stderr is not None
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; [None for _ in sys.stdin]"], stdin=process.stderr
    ) as reader:
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            reader.wait()
