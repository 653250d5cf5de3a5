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


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one decoder process may take: seconds per job, and bytes of memory in all."""

    max_decode_s: float = 30.0
    max_memory_bytes: int = 2 * 2**30


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
        """Return what `job` makes of `data`; raises MediaError."""
        process = self._started()
        expired = threading.Event()
        timer = threading.Timer(self._limits.max_decode_s, _expire, (process, expired))
        timer.start()
        try:
            answer = _exchange(process, data, job)
        except (BadAnswer, OSError) as error:
            self.close()
            raise self._ending(process, expired.is_set()) from error
        finally:
            timer.cancel()
        if isinstance(answer, MediaError):
            raise answer
        return answer

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
                except OSError:  # what was still buffered for a dead process
                    continue
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        """Return a living process."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "spaninfer_multimodal.worker"),
                *(str(self._limits.max_memory_bytes), str(self._limits.max_memory_bytes)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(os.environ),
        )
        return self._process

    def _ending(self, process: subprocess.Popen[bytes], expired: bool) -> MediaError:
        """Return why a process gave no answer."""
        if expired:
            return TooSlow(
                f"decoding took longer than {self._limits.max_decode_s:g} s, which is the limit"
            )
        code = process.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Unreadable(f"decoding it ended the decoder process ({how})")


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
