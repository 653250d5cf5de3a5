"""A server process as the README starts it, on the bundled model."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

sys.path.append(str(Path(__file__).parent / "fixtures"))

# These only end a test that has failed: the first start on a busy machine compiles for a minute.
START_S = 600.0
STOP_S = 120.0
ANSWER_S = 120.0


@dataclass
class Server:
    """A running process, where it listens, and what it has printed."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str]

    @property
    def printed(self) -> str:
        return "".join(self.lines)

    def client(self, **options) -> openai.OpenAI:
        settings = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0}
        return openai.OpenAI(**(settings | options))

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def metric(self, name: str) -> float:
        """Return one figure of /metrics, by name and labels as printed there."""
        text = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S).text
        [line] = [line for line in text.splitlines() if line.startswith(f"spaninfer_{name} ")]
        return float(line.split()[-1])

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.wait()

    def wait(self) -> int:
        """Wait until the process has ended, and return with what code."""
        return self.process.wait(STOP_S)


@contextlib.contextmanager
def served(
    *arguments: str | Path,
    python: str | Path = sys.executable,
    below: Sequence[str | Path] = (),
) -> Iterator[Server]:
    """Start a server on a free port, as the last arguments of a command if one is given; it is
    killed in the end if it still runs.

    Behind the block, all that it printed is there.
    """
    process = subprocess.Popen(
        [*below, python, "-m", "spaninfer", "serve", "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"COLUMNS": "200", "PYTHONFAULTHANDLER": "1"},
    )
    assert process.stderr is not None
    lines: list[str] = []
    found: list[str] = []
    told = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"playground\s+(http://\S+?)/?\s*$", line):
                found.append(match[1])
                told.set()
        told.set()

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        assert told.wait(START_S), "the server said nothing"
        assert found, "".join(lines)
        yield Server(process, found[0], lines)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reading.join(STOP_S)


@pytest.fixture(scope="session")
def serve() -> Callable[..., AbstractContextManager[Server]]:
    """What starts a server of one's own, with more arguments."""
    return served


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()
