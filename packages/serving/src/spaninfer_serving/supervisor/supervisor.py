"""The supervisor: a small process that starts the engine's process, and another one after a crash.

    supervisor             keeps the address; answers 503 while no engine's process does
      engine's process     listens, loads the model, and says when it answers requests
        API servers

Whatever ends the engine's process badly has the same consequence: an exception in a step, a step
that hangs, a crash in a kernel, a lack of memory, `kill -9`. So this module imports nothing that
could fail with it, and little that takes memory.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Final

from spaninfer_serving.supervisor.messages import FromEngine, ToEngine, receive, send

MAX_RESTARTS: Final = 3  # within WINDOW_S; then the server ends, with code 1
WINDOW_S: Final = 300.0
# Behind a signal and the time to drain: API servers get 5 s more, a step and weights 5 s each.
END_S: Final = 20.0
KILLED_S: Final = 5.0  # in which a process ends that is killed, unless it waits for a device
PAUSE_S: Final = 2.0  # in front of the second restart of a window, and twice that of the third


def supervise(command: Callable[[str], Sequence[str]]) -> int:
    """Run the engine's process, restart it after crashes, and return the code to exit with.

    Ends with a signal, a first start that fails (with its code), or a crash loop. `command` maps
    the file descriptor that `Supervised` takes to the process's command line.
    """
    return _Supervisor(command).run()


@dataclass(slots=True)
class _Supervisor:
    """The engine's processes, one after the other, and what is known of them."""

    command: Callable[[str], Sequence[str]]
    process: subprocess.Popen[bytes] | None = None
    status: FromEngine | None = None  # of the first that has begun to listen
    listener: socket.socket | None = None
    is_answering: bool = False  # or will, by itself, on the listener
    is_ending: bool = False  # a signal has come
    first_start_s: float = 0.0  # how long the first one took until it answered
    num_restarts: int = 0
    restarts_s: list[float] = field(default_factory=list)  # of this window

    def run(self) -> int:
        with self._signals_forwarded():
            while True:
                code = self._run_one()
                how = _ending(code)
                if self.is_ending or code == 0 or not self.first_start_s:
                    if code < 0 and not self.is_ending:  # else it has said why
                        self._say(
                            f"the engine's process {how} before it answered requests; where that "
                            "was for lack of memory, the system's log says so"
                        )
                    return code if code >= 0 else 128 - code  # as shells say it
                now_s = monotonic()
                self.restarts_s = [at_s for at_s in self.restarts_s if now_s - at_s < WINDOW_S]
                if len(self.restarts_s) == MAX_RESTARTS:
                    self._say(
                        f"the engine's process {how}; it was restarted {MAX_RESTARTS} times within "
                        f"{WINDOW_S:g} s, so the server ends"
                    )
                    return 1
                self.restarts_s.append(now_s)
                self.num_restarts += 1
                self._say(
                    f"the engine's process {how}; starting another one (restart "
                    f"{len(self.restarts_s)} of at most {MAX_RESTARTS} within "
                    f"{WINDOW_S:g} s)"
                )

    def _run_one(self) -> int:
        """Run one process of the engine to its end; return its code."""
        ours, theirs = socket.socketpair()
        num = len(self.restarts_s)
        wait_s = 0.0 if num < 2 else PAUSE_S * 2 ** (num - 2)
        with ours, theirs:
            send(ours, ToEngine(self.num_restarts, wait_s), self.listener)
            os.set_inheritable(theirs.fileno(), True)
            begun_s = monotonic()
            self.is_answering = self.listener is not None  # until the process does
            self.process = process = subprocess.Popen(
                self.command(str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                process_group=0,  # a terminal's Ctrl-C is for this process, which passes it on
            )
            theirs.close()
            if self.is_ending:  # the signal came when there was no process yet
                process.terminate()
            if self.listener is None:
                self._wait_until_ready(ours, begun_s)
            else:
                self._answer_until_ready(ours)
            return process.wait()

    def _wait_until_ready(self, control: socket.socket, begun_s: float) -> None:
        """Wait until the first process listens, and then until it answers; or for its end."""
        while (received := receive(control, FromEngine)) is not None:
            status, listener = received
            if listener is not None:
                self.status, self.listener = status, listener
                if self.is_ending:
                    listener.close()
            if status.is_ready:
                self.first_start_s = max(monotonic() - begun_s, 1e-3)
                return

    def _answer_until_ready(self, control: socket.socket) -> None:
        """Answer 503 until a process does so itself, or ends."""
        from spaninfer_serving.supervisor.restarting import answer_while  # asyncio: only now

        assert self.listener is not None, "one has listened"
        assert self.status is not None, "with the listener comes the status"
        try:
            answer_while(control, self.listener, self.status, ceil(self.first_start_s))
        except (
            Exception
        ) as reason:  # of a certificate that is gone: the process starts all the same
            self._say(f"requests wait for the engine's process and get no 503: {reason}")
        self.is_answering = False
        if self.is_ending:
            self.listener.close()

    @contextmanager
    def _signals_forwarded(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self._forward) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.is_ending:
            drain_s = 0.0 if self.status is None else self.status.drain_s
            ending = Timer(drain_s + END_S, self._kill, [drain_s])
            ending.daemon = True
            ending.start()
        self.is_ending = True
        if self.process is not None:
            self.process.send_signal(number)
            if self.listener is not None and not self.is_answering and self.process.poll() is None:
                # The process closes its own while it drains: connections are refused then, where
                # the last listener's queue would hold them until the end.
                self.listener.close()

    def _kill(self, drain_s: float) -> None:
        """Kill the process: what it waits for keeps it from its signals, as a page of a file that
        is mapped from a dead disk does, or its step and its disk hang at the same time.
        """
        process = self.process
        if process is None or process.poll() is not None:
            return
        self._say(
            f"the engine's process did not end within {drain_s + END_S:g} s, {drain_s:g} of them "
            "to drain; it is killed: where it reads from a disk that does not answer, check that"
        )
        process.kill()
        try:
            process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            self._say(
                f"the engine's process {process.pid} waits for a device and cannot be killed; it "
                "stays until that answers"
            )
            os._exit(1)

    def _say(self, sentence: str) -> None:
        """Log a line, in the form of the engine's process."""
        if self.status is not None and self.status.log_format == "json":
            from spaninfer_serving.observability.json_log import json_line

            sentence = json_line("error", __name__, sentence)
        else:
            sentence = f"error: {sentence}"
        print(sentence, file=sys.stderr, flush=True)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-code}"
