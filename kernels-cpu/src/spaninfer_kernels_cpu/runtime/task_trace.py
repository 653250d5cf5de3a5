"""A trace of scripts: which thread ran a task of which call, from when until when.

Every thread of a pool writes to memory of its own, until that is full. Times are in ns, by the
system's monotonic clock (`time.monotonic_ns`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.runtime.call import Script

_WORDS: Final = 4  # of a task: address of the script's headers, number of the call, begin, end
_HEAD: Final = 2  # words in front: how many tasks were noted, and how many there is room for
CAPACITY: Final = 1 << 18  # tasks of a thread: 8 MB, a minute of decoding


class ScriptRun(NamedTuple):
    """A run of a script, as the thread that called it saw it."""

    script: Script
    began: int
    ended: int


class ThreadTasks(NamedTuple):
    """The tasks of a thread, in order; `script` holds addresses of scripts."""

    script: NDArray[np.int64]
    call: NDArray[np.int64]
    began: NDArray[np.int64]
    ended: NDArray[np.int64]


class TaskTrace:
    """The runs of scripts by a pool of `num_threads`, and the tasks that each thread ran."""

    def __init__(self, num_threads: int, capacity: int) -> None:
        """Take memory for that many tasks of each thread."""
        self.runs: list[ScriptRun] = []
        self._words = np.zeros((num_threads, _HEAD + capacity * _WORDS), np.int64)
        self._words[:, 1] = capacity

    @property
    def is_full(self) -> bool:
        """True if a thread had more tasks than it has memory for."""
        return bool((self._words[:, 0] >= self._words[:, 1]).any())

    @property
    def addresses(self) -> list[int]:
        """The address of each thread's memory, for `note`."""
        return [row.ctypes.data for row in self._words]

    @property
    def threads(self) -> list[ThreadTasks]:
        """The tasks that each thread ran."""
        found = []
        for words in self._words:
            tasks = words[_HEAD : _HEAD + _WORDS * int(words[0])].reshape(-1, _WORDS)
            found.append(ThreadTasks(*tasks.T))
        return found


@device_function
def note(trace: int, script: int, call: int, began: int, ended: int) -> None:
    """Write a task down, if there is room."""
    head = numbers_at(trace, _HEAD, np.int64)
    done = head[0]
    if done < head[1]:
        words = numbers_at(trace + 8 * (_HEAD + _WORDS * done), _WORDS, np.int64)
        words[0], words[1], words[2], words[3] = script, call, began, ended
        head[0] = done + 1
