"""One decoder process, started when it is first needed and killed when a job takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass

from spaninfer_multimodal.errors import MediaError, TooSlow, Unreadable
from spaninfer_multimodal.worker.confine import environment
from spaninfer_multimodal.worker.jobs import Job, Media, to_json
from spaninfer_multimodal.worker.wire import BadAnswer, read_answer, write_message

COMMAND = (sys.executable, "-P", "-m", "spaninfer_multimodal.worker")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits of a decoder process: seconds per job, and bytes of memory in all."""

    max_decode_s: float = 30.0
    max_memory_bytes: int = 2 * 2**30


@dataclass(frozen=True, slots=True)
class _Ended:
    """A process ended without an answer."""

    returncode: int

    @property
    def how(self) -> str:
        """The signal or exit code, for messages."""
        code = self.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class DecoderProcess:
    """Runs jobs one after another in a process of its own; usable by one thread at a time."""

    def __init__(self, limits: ProcessLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The operating system's number of the process; None before the first job."""
        return self._process.pid if self._process is not None else None

    def run(self, data: bytes, job: Job) -> Media:
        """Return the result of `job` on `data`; raises MediaError.

        A process that has served before may have died of something else, so the job that finds it
        dead is tried once more.
        """
        answer = self._attempt(data, job) if self._process is not None else None
        if answer is None or isinstance(answer, _Ended):
            answer = self._attempt(data, job)
        if isinstance(answer, _Ended):
            raise Unreadable(f"decoding it ended the decoder process ({answer.how})")
        if isinstance(answer, MediaError):
            raise answer
        return answer

    def _attempt(self, data: bytes, job: Job) -> Media | MediaError | _Ended:
        """Give a living process one job; it does not outlive its time limit."""
        process = self._started()
        expired = threading.Event()
        timer = threading.Timer(self._limits.max_decode_s, _expire, (process, expired))
        timer.start()
        try:
            return _exchange(process, data, job)
        except (BadAnswer, OSError):
            self.close()
            if expired.is_set():
                return TooSlow(
                    f"decoding took longer than {self._limits.max_decode_s:g} s, which is the limit"
                )
            return _Ended(process.returncode)
        finally:
            timer.cancel()
            if expired.is_set():  # perhaps just after the answer came
                self.close()

    def close(self) -> None:
        """Kill the process; idempotent, and the next job starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # data still buffered for a dead process
                    continue
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        """Return a living process."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._process = subprocess.Popen(
            [*COMMAND, str(self._limits.max_memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(os.environ),
        )
        return self._process


def _exchange(process: subprocess.Popen[bytes], data: bytes, job: Job) -> Media | MediaError:
    """Send a job and read its answer."""
    assert process.stdin is not None, "it was opened as a pipe"
    assert process.stdout is not None, "it was opened as a pipe"
    write_message(process.stdin, to_json(job), data)
    return read_answer(process.stdout, job)


def _expire(process: subprocess.Popen[bytes], expired: threading.Event) -> None:
    """Kill a process whose time is over."""
    expired.set()
    process.kill()
