"""Threads that run a script together: calls one after the other, the tasks of each shared.

One word says which call is open and how many of its tasks are left. Whoever is free takes one with
a compare-and-swap; whoever finishes a call's last task opens the next call. There is no barrier:
who is held up by the system delays the others only while holding a task, and who comes late finds
the place without help. The caller works too, and alone if nobody comes.

Who finds no task spins at first, because calls are short; then gives way to other processes; then
sleeps, so that the system moves a thread that waits for a busy CPU to this one. Between scripts
helpers spin for about as long as an engine plans its next step, then park on a lock.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from threading import Lock, Thread

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from spaninfer_kernels_cpu import atomics
from spaninfer_kernels_cpu.call import HEADER, MAX_COUNTS, Script
from spaninfer_kernels_cpu.compiled import make_ready
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.pointer import numbers_at
from spaninfer_kernels_cpu.threads import usable_cpus

State = NDArray[np.int64]

TASK_BITS = 22  # of the word: a call has fewer tasks; the other bits number calls for years

# Words of the state. Those that every thread writes have 128 bytes to themselves: CPUs fetch cache
# lines of 64 bytes in pairs.
_LINE = 16
_OPEN = 0  # number of the open call << TASK_BITS | how many of its tasks nobody has taken
_TASKS = 1  # of the open call
_DONE = _LINE  # tasks of the open call that are finished
_SCRIPT = 2 * _LINE  # grows by 2 with every script; odd while the words behind it are written
_CALLS = _SCRIPT + 1  # address of the headers
_LAST = _SCRIPT + 2  # number behind the script's last call
_FIRST = _SCRIPT + 3  # number of its first
_COUNT = _SCRIPT + 4  # the counts of the step
_CLOSED = _COUNT + MAX_COUNTS
_YIELD = _CLOSED + 1  # addresses of functions of the system
_SLEEP = _CLOSED + 2
_PARKED = 4 * _LINE  # 16 words per helper, the first: is it about to wait for its lock?

PAUSES = 400  # before a thread gives way; one takes about 50 ns
YIELDS = 100  # before it sleeps
SLEEP_US = 50
PATIENCE = 6000  # pauses of a helper between scripts


class Team:
    """`num_threads` threads, the caller's among them, that run scripts one at a time.

    A context manager. Helpers are daemons: a process may end without `close`.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = usable_cpus() if num_threads is None else num_threads
        make_team_ready()
        self._running = Lock()
        self._state = np.zeros(_PARKED + self.num_threads * _LINE, np.int64)
        self._state[_YIELD], self._state[_SLEEP] = _system_functions()
        self._locks = [Lock() for _ in range(self.num_threads - 1)]
        self._helpers = [
            Thread(target=self._help, args=(number,), name=f"spaninfer-team-{number}", daemon=True)
            for number in range(len(self._locks))
        ]
        for lock, helper in zip(self._locks, self._helpers, strict=True):
            lock.acquire()
            helper.start()

    def run(self, script: Script, counts: Sequence[int]) -> None:
        """Do all calls of a script, cut by these counts (see `call`); return when they are done."""
        with self._running:
            if self._state[_CLOSED]:
                raise RuntimeError("this team was closed; make another one")
            counted = np.array(counts, np.int64)
            if _begin(self._state, script.address, len(script), counted):
                self._wake()
            _take_part(self._state)

    def close(self) -> None:
        """End the helpers; harmless when repeated."""
        with self._running:
            self._state[_CLOSED] = 1
            _begin(self._state, 0, 0, np.zeros(0, np.int64))
            self._wake()
        for helper in self._helpers:
            helper.join()

    def __enter__(self) -> Team:
        """Return the team itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close; the caller's exception stays."""
        self.close()

    def _wake(self) -> None:
        for number, lock in enumerate(self._locks):
            if _unpark(self._state, number):
                lock.release()

    def _help(self, number: int) -> None:
        seen = 0
        while not self._state[_CLOSED]:
            seen, parked = _serve(self._state, number, seen)
            if parked:
                self._locks[number].acquire()


@cache
def shared_team() -> Team:
    """Return the team of this process: a thread per usable CPU."""
    return Team()


@cache
def make_team_ready() -> None:
    """Compile what a team runs on, or load it."""
    for function, arguments in (
        (_begin, [_STATE, types.int64, types.int64, _STATE]),
        (_take_part, [_STATE]),
        (_unpark, [_STATE, types.int64]),
        (_serve, [_STATE, types.int64, types.int64]),
    ):
        make_ready(function, tuple(arguments))


def _system_functions() -> tuple[int, int]:
    """Return the addresses of what gives a CPU to other threads, and of what sleeps some µs."""
    if sys.platform == "win32":  # both take milliseconds there; 0 of them is giving way
        sleep = ctypes.windll.kernel32.Sleep
        return _address(sleep), _address(sleep)
    system = ctypes.CDLL(None)
    return _address(system.sched_yield), _address(system.usleep)


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


# ---- what threads do, without Python's lock ------------------------------------------------------

_STATE = types.Array(types.int64, 1, "C")


@njit(nogil=True, cache=True, error_model="numpy")
def _begin(state: State, calls: int, num_calls: int, counts: State) -> bool:
    """Open a script's first call; return whether a helper may have to be woken."""
    base = state.ctypes.data
    first = atomics.load(base + 8 * _OPEN) >> TASK_BITS
    atomics.add(base + 8 * _SCRIPT, 1)
    atomics.fence()
    state[_CALLS] = calls
    state[_FIRST] = first
    state[_LAST] = first + num_calls
    for i in range(len(counts)):
        state[_COUNT + i] = counts[i]
    _open(state, calls, first, first, first + num_calls)
    atomics.add(base + 8 * _SCRIPT, 1)
    parked = 0
    for helper in range(_PARKED, len(state), _LINE):
        parked |= atomics.load(base + 8 * helper)
    return parked != 0


@in_kernel
def _open(state: State, calls: int, first: int, number: int, last: int) -> None:
    """Open call `number`, or the next one that has tasks, or say that there is none."""
    base = state.ctypes.data
    tasks = 0
    while number < last:
        header = numbers_at(calls + (number - first) * 8 * HEADER, HEADER, np.int64)
        count = state[_COUNT + header[4]]
        tasks = (count + header[3] - 1) // header[3] * header[2]
        if tasks > 0:
            break
        number += 1
    state[_DONE] = 0
    atomics.store(base + 8 * _TASKS, tasks)
    atomics.store(base + 8 * _OPEN, number << TASK_BITS | tasks)


@njit(nogil=True, cache=True, error_model="numpy")
def _take_part(state: State) -> None:
    """Do tasks until the script that has begun last is over.

    A header is read only by who has a task of its call, or opens it: a thread that comes late may
    find that the script's memory is gone.
    """
    base = state.ctypes.data
    script = 1
    calls = first = last = 0
    while script & 1 or script != atomics.load(base + 8 * _SCRIPT):
        script = atomics.load(base + 8 * _SCRIPT)
        calls, first, last = state[_CALLS], state[_FIRST], state[_LAST]
        atomics.fence()
    idle = 0
    while True:
        now = atomics.load(base + 8 * _OPEN)
        number, left = now >> TASK_BITS, now & ((1 << TASK_BITS) - 1)
        if number >= last:
            return
        if left == 0:
            idle += 1
            _wait(state, idle)
        elif atomics.replace(base + 8 * _OPEN, now, now - 1):
            idle = 0
            tasks = atomics.load(base + 8 * _TASKS)
            header = numbers_at(calls + (number - first) * 8 * HEADER, HEADER, np.int64)
            atomics.call_kernel(header[0], header[1], state[_COUNT + header[4]], tasks - left)
            if atomics.add(base + 8 * _DONE, 1) + 1 == tasks:
                _open(state, calls, first, number + 1, last)


@in_kernel
def _wait(state: State, idle: int) -> None:
    """Let some time pass: little at first."""
    if idle < PAUSES:
        atomics.pause()
    elif idle < PAUSES + YIELDS:
        atomics.call_system(state[_YIELD], 0)
    else:
        atomics.call_system(state[_SLEEP], SLEEP_US)


@njit(nogil=True, cache=True, error_model="numpy")
def _serve(state: State, number: int, seen: int) -> tuple[int, bool]:
    """Take part in scripts until none begins for a while, or the team is closed.

    Return the last script seen, and whether the helper is to wait for its lock.
    """
    script, parked = state.ctypes.data + 8 * _SCRIPT, _parked(state, number)
    waited = 0
    while not state[_CLOSED]:
        now = atomics.load(script)
        if now != seen and now & 1 == 0:
            seen, waited = now, 0
            _take_part(state)
        elif waited < PATIENCE:
            waited += 1
            atomics.pause()
        else:
            atomics.exchange(parked, 1)
            if atomics.load(script) == seen or not atomics.exchange(parked, 0):
                return seen, True
    return seen, False


@njit(nogil=True, cache=True, error_model="numpy")
def _unpark(state: State, number: int) -> bool:
    """Return whether a helper waits for its lock, or will; the lock must be released then."""
    was_parked: bool = atomics.exchange(_parked(state, number), 0) == 1
    return was_parked


@in_kernel
def _parked(state: State, number: int) -> int:
    address: int = state.ctypes.data + 8 * (_PARKED + number * _LINE)
    return address
