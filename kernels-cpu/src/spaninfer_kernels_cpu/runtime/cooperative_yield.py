"""A thread's turn on its CPU, and when to give it up.

Where other programs want the same CPU, the system lets each run for some milliseconds. A thread
whose turn ends inside a task holds up all others of its team until the next one: with one of two
CPUs shared so, both do nothing for half of the time. So a thread gives way by itself when the turn
is about to end, between two tasks; the others do all of the work until it is back.

How long turns are is learned. A task that takes long makes a thread compare the time that has
passed with the time that it ran: where both differ, it was held up, and the time that it ran is a
turn's length, if it knows when the turn began. From then on it gives way an eighth earlier, and
tries a little longer each time, so that turns that have become longer are used. What is learned
once shrinks by no more than an eighth at a time: some turns are cut short by a program that wakes.

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
from spaninfer_kernels_cpu.codegen.device_function import in_kernel
from spaninfer_kernels_cpu.codegen.elements import larger
from spaninfer_kernels_cpu.runtime.call import word

WORDS: Final = 16  # int64 of a turn: 128 bytes, which no other thread writes
_CLOCK = 0  # address of the system's clock_gettime, or 0
_YIELD = 1  # and of what gives a CPU to other threads
_BEGAN = 2  # when the turn began
_RAN = 3  # how long the thread had run by then, in all its life
_SEEN = 4  # when the thread last looked at the clock
_WHOLE = 5  # has the thread just come back, so that all of a turn is before it?
_LENGTH = 6  # of turns: the thread gives way when this one is as long

LONG: Final = 1_000_000  # a step after which a thread asks whether it was held up
SHORT: Final = 250_000  # a task whose hold-up says exactly enough when a turn ended, and one began
LEAST: Final = 1_000_000  # a turn
NEVER: Final = 1 << 60
_EIGHTH = 3  # bits: a thread gives way so much earlier
_LONGER = 8  # bits: each turn by a part of itself; held up again after 35 turns, 0.3 s of 8 ms each

# Numbers of the system's clocks.
TIME = int(getattr(time, "CLOCK_MONOTONIC", 0))
RUN_TIME = int(getattr(time, "CLOCK_THREAD_CPUTIME_ID", 0))


def new_turns(threads: int) -> NDArray[np.int64]:
    """Return the words of so many threads' turns, for the functions below: turns[threads WORDS]."""
    turns = np.zeros((threads, WORDS), np.int64)
    turns[:, _CLOCK], turns[:, _YIELD] = _system_functions()
    turns[:, _LENGTH] = NEVER
    return turns


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


# ---- inside kernels; `turn` is the address of a thread's words -----------------------------------


@in_kernel
def go_on(turn: int) -> None:
    """Look at the clock for the first time in a while: the thread may have slept."""
    now = _time(turn, TIME)
    if now - word(turn, _SEEN) > LONG:
        _begin(turn, now, _time(turn, RUN_TIME), 0)
    _put(turn, _SEEN, now)


@in_kernel
def is_over(turn: int) -> bool:
    """Return whether to give way, before the next task; note whether the thread was held up."""
    now = _time(turn, TIME)
    if now - word(turn, _SEEN) > LONG:
        _look_back(turn, now)
    _put(turn, _SEEN, now)
    over: bool = now - word(turn, _BEGAN) > word(turn, _LENGTH)
    return over


@in_kernel
def _look_back(turn: int, now: int) -> None:
    """Find out whether the thread was held up since it last looked at the clock."""
    ran = _time(turn, RUN_TIME)
    length = ran - word(turn, _RAN)
    held_up = now - word(turn, _BEGAN) - length
    if held_up > LONG // 2:
        known = 1 if now - word(turn, _SEEN) - held_up < SHORT else 0
        if known & word(turn, _WHOLE):
            length -= length >> _EIGHTH
            before = word(turn, _LENGTH)
            if before < NEVER:
                length = larger(length, before - (before >> _EIGHTH))
            _put(turn, _LENGTH, larger(LEAST, length))
        _begin(turn, now, ran, known)


@in_kernel
def end(turn: int) -> None:
    """Give way at the end of a turn, and let the next be a little longer."""
    length = word(turn, _LENGTH)
    _put(turn, _LENGTH, length + (length >> _LONGER))
    give_way(turn)


@in_kernel
def give_way(turn: int) -> None:
    """Let another program have the CPU, if one waits for it."""
    before = _time(turn, TIME)
    atomics.call_system(word(turn, _YIELD), 0)
    now = _time(turn, TIME)
    _begin(turn, now, _time(turn, RUN_TIME), 1 if now - before > LONG // 2 else 0)
    _put(turn, _SEEN, now)


@in_kernel
def _begin(turn: int, now: int, ran: int, whole: int) -> None:
    _put(turn, _BEGAN, now)
    _put(turn, _RAN, ran)
    _put(turn, _WHOLE, whole)


@in_kernel
def _time(turn: int, clock: int) -> int:
    if word(turn, _CLOCK) == 0:
        return 0
    now: int = atomics.read_clock(word(turn, _CLOCK), clock)
    return now


@in_kernel
def _put(turn: int, number: int, value: int) -> None:
    numbers_at(turn + 8 * number, 1, np.int64)[0] = value
