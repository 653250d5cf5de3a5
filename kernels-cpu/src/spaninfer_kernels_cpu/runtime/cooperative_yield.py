"""Cooperative yielding: a thread's time quantum on its CPU, and when to give it up.

Where other programs want the same CPU, the system lets each run for some milliseconds. A thread
whose quantum ends inside a task holds up all others of its pool until the next one: with one of two
CPUs shared so, both do nothing for half of the time. So a thread yields by itself when the quantum
is about to end, between two tasks; the others do all of the work until it is back.

How long quanta are is learned. A task that takes long makes a thread compare the time that has
passed with the time that it ran: where both differ, it was held up, and the time that it ran is a
quantum's length, if it knows when the quantum began. From then on it yields an eighth earlier, and
tries a little longer each time, so that quanta that have become longer are used. What is learned
once shrinks by no more than an eighth at a time: some quanta are cut short by a program that wakes.

Times are in ns. Nothing happens where the system has no clock of a thread (Windows).
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen import atomics
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import larger, read_int64

WORDS: Final = 16  # int64 of a quantum: 128 bytes, which no other thread writes
_CLOCK = 0  # address of the system's clock_gettime, or 0
_YIELD = 1  # and of what gives a CPU to other threads
_BEGAN = 2  # when the quantum began
_RAN = 3  # how long the thread had run by then, in all its life
_SEEN = 4  # when the thread last looked at the clock
_WHOLE = 5  # has the thread just come back, so that all of a quantum is before it?
_LENGTH = 6  # of quanta: the thread yields when this one is as long
TRACE = 7  # address of the thread's trace, or 0 (`task_trace`)

LONG: Final = 1_000_000  # a step after which a thread asks whether it was held up
SHORT: Final = (
    250_000  # a hold-up of a task says exactly enough when a quantum ended, and one began
)
LEAST: Final = 1_000_000  # a quantum
NEVER: Final = 1 << 60
_EIGHTH = 3  # bits: a thread yields so much earlier
_LONGER = 8  # bits: each by a part of itself; held up again after 35 quanta, 0.3 s of 8 ms each

# Numbers of the system's clocks.
TIME = int(getattr(time, "CLOCK_MONOTONIC", 0))
RUN_TIME = int(getattr(time, "CLOCK_THREAD_CPUTIME_ID", 0))


def new_quanta(threads: int) -> NDArray[np.int64]:
    """Return the words of that many threads, for the functions below: quanta[threads WORDS]."""
    quanta = np.zeros((threads, WORDS), np.int64)
    quanta[:, _CLOCK], quanta[:, _YIELD] = _system_functions()
    quanta[:, _LENGTH] = NEVER
    return quanta


def _system_functions() -> tuple[int, int]:
    """Return the addresses of the clock, 0 if there is none, and of what gives a CPU away."""
    if sys.platform == "win32":
        return 0, _address(ctypes.windll.kernel32.SwitchToThread)
    system = ctypes.CDLL(None)
    return _address(system.clock_gettime) if RUN_TIME else 0, _address(system.sched_yield)


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


# ---- inside kernels; `quantum` is the address of a thread's words --------------------------------


@device_function
def resume(quantum: int) -> None:
    """Look at the clock for the first time in a while: the thread may have slept."""
    now = time_ns(quantum)
    if now - read_int64(quantum, _SEEN) > LONG:
        _begin(quantum, now, _read(quantum, RUN_TIME), 0)
    _put(quantum, _SEEN, now)


@device_function
def is_over(quantum: int) -> bool:
    """Return whether to yield, before the next task; note whether the thread was held up."""
    now = time_ns(quantum)
    if now - read_int64(quantum, _SEEN) > LONG:
        _look_back(quantum, now)
    _put(quantum, _SEEN, now)
    over: bool = now - read_int64(quantum, _BEGAN) > read_int64(quantum, _LENGTH)
    return over


@device_function
def _look_back(quantum: int, now: int) -> None:
    """Find out whether the thread was held up since it last looked at the clock."""
    ran = _read(quantum, RUN_TIME)
    length = ran - read_int64(quantum, _RAN)
    held_up = now - read_int64(quantum, _BEGAN) - length
    if held_up > LONG // 2:
        known = 1 if now - read_int64(quantum, _SEEN) - held_up < SHORT else 0
        if known & read_int64(quantum, _WHOLE):
            length -= length >> _EIGHTH
            before = read_int64(quantum, _LENGTH)
            if before < NEVER:
                length = larger(length, before - (before >> _EIGHTH))
            _put(quantum, _LENGTH, larger(LEAST, length))
        _begin(quantum, now, ran, known)


@device_function
def end(quantum: int) -> None:
    """Give way at the end of a quantum, and let the next be a little longer."""
    length = read_int64(quantum, _LENGTH)
    _put(quantum, _LENGTH, length + (length >> _LONGER))
    yield_cpu(quantum)


@device_function
def yield_cpu(quantum: int) -> None:
    """Let another program have the CPU, if one waits for it."""
    before = time_ns(quantum)
    atomics.call_system(read_int64(quantum, _YIELD), 0)
    now = time_ns(quantum)
    _begin(quantum, now, _read(quantum, RUN_TIME), 1 if now - before > LONG // 2 else 0)
    _put(quantum, _SEEN, now)


@device_function
def _begin(quantum: int, now: int, ran: int, whole: int) -> None:
    _put(quantum, _BEGAN, now)
    _put(quantum, _RAN, ran)
    _put(quantum, _WHOLE, whole)


@device_function
def time_ns(quantum: int) -> int:
    """Return the time by the system's monotonic clock."""
    now: int = _read(quantum, TIME)
    return now


@device_function
def _read(quantum: int, clock: int) -> int:
    if read_int64(quantum, _CLOCK) == 0:
        return 0
    now: int = atomics.read_clock(read_int64(quantum, _CLOCK), clock)
    return now


@device_function
def _put(quantum: int, number: int, value: int) -> None:
    numbers_at(quantum + 8 * number, 1, np.int64)[0] = value
