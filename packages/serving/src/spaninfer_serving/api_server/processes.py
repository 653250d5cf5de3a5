"""The processes of API servers, which import what they need while a model loads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from spaninfer_serving.observability.figures import bytes_for
from spaninfer_serving.settings import Settings

# The event loop and the engine's threads share the interpreter. Behind a loop that never rests, a
# thread waits so long at each of a step's calls of kernels: of 8 requests (the bundled model), a
# step took 32 to 46 ms with Python's own 5 ms, 18 to 23 with this, 12 to 21 with the loop at rest.
SWITCH_S = 0.5e-3


class ApiServerProcess(NamedTuple):
    """A process that waits for its configuration, and our end of the link to it."""

    process: subprocess.Popen[bytes]
    end: socket.socket


class ApiServerProcesses:
    """Processes that share a listener and the memory of their figures."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        """Start as many as the settings say."""
        self._listener = listener
        self._figures = _nameless_file()  # closed by `close`
        self._figures.truncate(bytes_for(settings.api_servers))
        self._waiting = [self._start() for _ in range(settings.api_servers)]

    def take(self) -> ApiServerProcess:
        """Return a waiting process, or a new one where none is left."""
        return self._waiting.pop() if self._waiting else self._start()

    def close(self) -> None:
        """End the waiting processes; idempotent."""
        while self._waiting:
            process, end = self._waiting.pop()
            end.close()
            process.kill()
            process.wait()
        self._figures.close()

    def _start(self) -> ApiServerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            files = (self._listener.fileno(), theirs.fileno(), self._figures.fileno())
            process = subprocess.Popen(
                # -P: no code of the folder that the server was started in, which may be a model's.
                [sys.executable, "-P", "-m", "spaninfer_serving.api_server", *map(str, files)],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                # A terminal's Ctrl-C is for this process alone. Not in a session of its own: that
                # is a group of its own for the scheduler (autogroup, sched(7)), and an API server
                # that woke up waited up to 137 ms for a CPU while the engine had two of them busy;
                # 18 ms in the same session (Linux 6.18, 2026-11-24).
                process_group=0,
            )
        return ApiServerProcess(process, ours)


@contextmanager
def api_server_processes(
    settings: Settings, listener: socket.socket
) -> Iterator[ApiServerProcesses | None]:
    """Start the processes that the settings ask for, for `serve`; None for none."""
    if not settings.api_servers:
        yield None
        return
    processes = ApiServerProcesses(settings, listener)
    try:
        yield processes
    finally:
        processes.close()


def _nameless_file() -> IO[bytes]:
    """Return an empty file without a name, in memory where that can be: a page of mapped memory
    for which a disk has no room ends a process by SIGBUS.
    """
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("spaninfer-figures"), "w+b")
    return tempfile.TemporaryFile()
