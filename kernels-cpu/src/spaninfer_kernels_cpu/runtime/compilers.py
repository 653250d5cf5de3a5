"""Processes that compile kernels side by side, into the cache on disk that all of them share.

Numba compiles under a lock, one function at a time, so one process keeps one core busy. The first
start on a machine compiles for 10 to 20 s of CPU time; here others help, each a plain interpreter
that runs `compiler_main`: it receives names of kernels, and never imports the program it helps.
Where everything is on disk, none is started.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from threading import Condition, Thread
from types import TracebackType
from typing import IO, Any, Final, TypeAlias

from numba.core import config
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen.compiled import cache_of_these_sources
from spaninfer_kernels_cpu.codegen.kernel import (
    Kernel,
    Name,
    address_of,
    is_on_disk,
    is_ready,
    name_of,
)

MOST = 4  # processes, this one among them: one kernel takes a third of all the time

_numba: Any = config  # its names are made when it is imported

LITTLE_S = 2.0  # less is done here before another process has imported Numba, which takes 1 s

OnProgress: TypeAlias = Callable[[int, int], None]

_SECONDS: Final = {"attend": 4.0, "_sample": 2.5, "gemm": 1.6}  # EPYC Zen 3, 2026-11-21
_OTHERS_S = 0.4


def seconds_of(kernel: Kernel) -> float:
    """Return about how long a kernel takes to compile: who takes long is to begin early."""
    return _SECONDS.get(kernel.__name__, _OTHERS_S)


class Compilers:
    """Compiles kernels on all usable cores, or loads those that are in the cache on disk.

    `on_progress` is called with the number of missing ones that are done, and of all, while a
    caller waits for them; `most`: processes, this one among them. One caller at a time.
    """

    def __init__(self, on_progress: OnProgress | None = None, most: int | None = None) -> None:
        self._on_progress = on_progress or (lambda _done, _total: None)
        self._others = (min(MOST, usable_cpus()) if most is None else most) - 1
        self._asked: dict[Kernel, None] = {}  # in order; all that are not known to be ready
        self._changed = Condition()  # guards what follows
        self._missing: list[Kernel] = []  # not being compiled yet; the longest comes last
        self._elsewhere = 0  # kernels that other processes compile
        self._done = self._total = 0  # of those that were missing
        self._processes: set[_Process] = set()
        self._trouble: str | None = None  # why no other process helps any more

    def begin(self, kernels: Iterable[Kernel]) -> None:
        """Start compiling those kernels in other processes that are not on disk; do not wait."""
        new = [kernel for kernel in kernels if kernel not in self._asked and not is_ready(kernel)]
        self._asked.update(dict.fromkeys(new))
        missing = [kernel for kernel in dict.fromkeys(new) if not is_on_disk(kernel)]
        with self._changed:
            self._missing = sorted([*self._missing, *missing], key=seconds_of)
            self._total += len(missing)
            named = [kernel for kernel in self._missing if name_of(kernel) is not None]
            if (
                sum(map(seconds_of, named)) < LITTLE_S
                or cache_of_these_sources().writable() is None
            ):
                return
            more = min(self._others, len(named)) - len(self._processes)
        for _ in range(more):
            if not self._employ():
                return

    def finish(self, kernels: Iterable[Kernel] = ()) -> None:
        """Make these and all that were begun ready in this process, which compiles too.

        Warns if other processes could not help. If this is interrupted, they end as well.
        """
        self.begin(kernels)
        try:
            while (kernel := self._next_here()) is not None:
                address_of(kernel)
                with self._changed:
                    self._done += 1
        except BaseException:
            self.close()
            raise
        for kernel in self._asked:  # from disk, if another process compiled it
            address_of(kernel)
        self._asked.clear()
        self._done = self._total = 0
        if self._trouble is not None:
            warnings.warn(
                f"kernels were compiled by one process instead of several: {self._trouble}",
                RuntimeWarning,
                stacklevel=2,
            )
            self._trouble = None

    def close(self) -> None:
        """End the other processes, whatever they are doing; idempotent."""
        with self._changed:
            self._others = 0
            self._missing.clear()
            processes = tuple(self._processes)
        for process in processes:
            process.kill()

    def _next_here(self) -> Kernel | None:
        """Return what this process is to compile; None when all is done, here and elsewhere."""
        with self._changed:
            while True:
                if self._total:
                    self._on_progress(self._done, self._total)
                if self._missing:
                    return self._missing.pop()
                if not self._elsewhere:
                    return None
                self._changed.wait(0.1)  # on Windows, Ctrl-C is not heard before it returns

    # ---- other processes -------------------------------------------------------------------------

    def _employ(self) -> bool:
        """Start a process, and a thread that hands it kernels while there are; return success."""
        try:
            process = _Process()
        except OSError as refused:
            self._trouble = f"another one cannot be started ({refused})"
            self._others = 0
            return False
        with self._changed:
            self._processes.add(process)
        Thread(target=self._serve, args=(process,), daemon=True).start()
        return True

    def _serve(self, process: _Process) -> None:
        with process:
            trouble = process.answer()  # until it can begin, what it would do may be done here
            while trouble is None and (taken := self._next_elsewhere()) is not None:
                kernel, name = taken
                trouble = process.compile(name)
                with self._changed:
                    self._elsewhere -= 1
                    if trouble is None and is_on_disk(kernel):
                        self._done += 1
                    else:
                        self._missing.append(kernel)
                        self._others = 0  # what ended this process, or filled the disk, is not over
                    self._changed.notify_all()
        with self._changed:
            self._processes.discard(process)
            if trouble is not None:
                self._trouble = trouble
                self._others = 0  # what ended one process may end the next

    def _next_elsewhere(self) -> tuple[Kernel, Name] | None:
        with self._changed:
            for kernel in reversed(self._missing):
                name = name_of(kernel)
                if name is not None and self._others:
                    self._missing.remove(kernel)
                    self._elsewhere += 1
                    return kernel, name
        return None


class _Process:
    """Another interpreter that compiles the kernels it is sent; it ends with its standard input.

    That is when it is closed here, and when this process is gone, for whatever reason.
    """

    def __init__(self) -> None:
        folder = cache_of_these_sources().writable()  # there may be no temporary one
        self._errors: IO[bytes] = TemporaryFile(dir=folder)  # noqa: SIM115, closed with the process
        program = "from spaninfer_kernels_cpu.runtime.compiler_main import main; main()"
        flags = ["-P", *["-O"] * sys.flags.optimize]
        try:
            self._popen = Popen(
                [_interpreter(), *flags, "-c", program],
                stdin=PIPE,
                stdout=PIPE,
                stderr=self._errors,
                env=os.environ | _environment(),
                text=True,
            )
        except BaseException:
            self._errors.close()
            raise

    def compile(self, name: Name) -> str | None:
        """Return when a kernel is on disk; or why it is not."""
        with suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(name), file=self._popen.stdin, flush=True)
        return self.answer()

    def answer(self) -> str | None:
        """Return when it is ready for the next kernel; or why it will not be."""
        assert self._popen.stdout is not None
        return None if self._popen.stdout.readline() == "ready\n" else self._why()

    def kill(self) -> None:
        """End it now."""
        self._popen.kill()

    def _why(self) -> str:
        """Return the last words of a process that ended."""
        self._popen.kill()  # unless it has
        code = self._popen.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no message")
        return f"another one ended with code {code} ({last})"

    def __enter__(self) -> _Process:
        """Return the process itself."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End it and what belongs to it."""
        self._popen.kill()  # it has nothing to do
        with suppress(BrokenPipeError), self._popen:  # of a name that it was gone too early to take
            pass
        self._errors.close()


def _interpreter() -> str:
    """Return the interpreter's path; OSError where this program is not it but has it inside."""
    if hasattr(sys, "frozen") or not Path(sys.executable or "").name.lower().startswith("python"):
        raise OSError(f"{sys.executable!r} is no Python interpreter")
    return sys.executable


def _environment() -> dict[str, str]:
    """Return what a process finds the same code and the same cache by, and wastes nothing."""
    folders = (str(Path(folder).absolute()) for folder in sys.path)  # "" is the current one
    return {
        "PYTHONPATH": os.pathsep.join(folders),
        "NUMBA_CACHE_DIR": _numba.CACHE_DIR,
        # Numba colours what it says of each template that does not fit, though it is not shown.
        "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1",
        # A process that multiplies no matrices needs no thread per core for that.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
