"""Cooperative yielding: threads leave a CPU before a quantum ends while others wait for it."""

import ctypes
import time

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.codegen import atomics
from spaninfer_kernels_cpu.runtime import cooperative_yield

MS = 1_000_000
TIMESPEC = ctypes.POINTER(2 * ctypes.c_int64)

pytestmark = pytest.mark.skipif(
    not cooperative_yield.RUN_TIME, reason="needs the clock of a thread"
)


class Machine:
    """A CPU that a thread shares with a program that never rests: each has it in turn."""

    def __init__(self, quantum):
        self.quantum, self.shared = quantum, True
        self.now, self.ran, self.ends = MS, 0, MS + quantum
        self.held_up = self.gave_way = 0
        self.read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, TIMESPEC)(self._read)
        self.give = ctypes.CFUNCTYPE(ctypes.c_int)(self._give)
        self.words = cooperative_yield.new_quanta(1)
        for place, function in (
            (cooperative_yield._CLOCK, self.read),
            (cooperative_yield._YIELD, self.give),
        ):
            self.words[0, place] = ctypes.cast(function, ctypes.c_void_p).value

    def work(self, ns):
        """Have the thread run for so long, wherever that leaves it."""
        while ns:
            part = min(ns, self.ends - self.now) if self.shared else ns
            self.now, self.ran, ns = self.now + part, self.ran + part, ns - part
            if self.shared and self.now == self.ends:
                self.held_up += 1
                self._wait()

    def _wait(self):
        self.now = self.ends + self.quantum
        self.ends = self.now + self.quantum

    def _give(self):
        self.gave_way += 1
        if self.shared:
            self._wait()
        return 0

    def _read(self, clock, out):
        ns = self.now if clock == cooperative_yield.TIME else self.ran
        out.contents[:] = divmod(ns, 10**9)
        return 0


@njit
def begin(quantum):
    cooperative_yield.resume(quantum)


@njit
def give_way_if_over(quantum):
    if cooperative_yield.is_over(quantum):
        cooperative_yield.end(quantum)


def do_tasks(machine, count, ns):
    """Return how often the thread was held up, and which part of the time it ran."""
    held_up, now, ran = machine.held_up, machine.now, machine.ran
    address = machine.words.ctypes.data
    begin(address)
    for _ in range(count):
        give_way_if_over(address)
        machine.work(ns)
    return machine.held_up - held_up, (machine.ran - ran) / (machine.now - now)


@pytest.mark.parametrize("quantum", [2 * MS, 4 * MS, 10 * MS])
def test_a_thread_is_held_up_twice_and_then_gives_way_in_time(quantum):
    machine = Machine(quantum)

    held_up, _ = do_tasks(machine, 100 * quantum // MS, MS // 20)
    assert held_up == 2

    held_up, part = do_tasks(machine, 2000 * quantum // MS, MS // 20)
    assert held_up < 5  # of a hundred turns: it tries whether they have become longer
    assert part > 0.44  # of its time; half is its due


def test_turns_that_become_shorter_or_longer_are_noticed():
    machine = Machine(4 * MS)
    do_tasks(machine, 1000, MS // 20)

    machine.quantum = 2 * MS
    do_tasks(machine, 1000, MS // 20)
    assert do_tasks(machine, 1000, MS // 20)[0] < 2

    machine.quantum = 8 * MS
    do_tasks(machine, 50_000, MS // 20)
    assert machine.words[0, cooperative_yield._LENGTH] > 6 * MS


def test_a_turn_that_is_cut_short_once_costs_an_eighth_of_the_length():
    machine = Machine(4 * MS)
    do_tasks(machine, 1000, MS // 20)
    before = machine.words[0, cooperative_yield._LENGTH]

    while machine.ends - machine.now < 3 * MS:  # until a turn has begun
        do_tasks(machine, 1, MS // 20)
    machine.ends = machine.now + MS // 5
    held_up, _ = do_tasks(machine, 20, MS // 20)

    assert held_up == 1
    assert 0.86 < machine.words[0, cooperative_yield._LENGTH] / before < 0.9


def test_a_long_task_that_is_held_up_says_nothing_about_turns():
    machine = Machine(4 * MS)
    do_tasks(machine, 1000, MS // 20)

    held_up, _ = do_tasks(machine, 100, 3 * MS)

    assert held_up > 20
    assert machine.words[0, cooperative_yield._LENGTH] > 3 * MS


def test_who_has_a_cpu_alone_never_gives_way_however_long_tasks_are():
    machine = Machine(4 * MS)
    machine.shared = False

    do_tasks(machine, 100, 7 * MS)

    assert machine.gave_way == 0


def test_when_the_other_program_has_gone_giving_way_becomes_rare():
    machine = Machine(4 * MS)
    do_tasks(machine, 1000, MS // 20)
    machine.shared, machine.gave_way = False, 0

    do_tasks(machine, 20 * 1000, MS // 20)  # a second

    assert machine.gave_way < 300


def test_sleep_between_scripts_is_not_taken_for_a_turn_of_others():
    machine = Machine(4 * MS)
    machine.shared = False

    for _ in range(20):
        machine.now += 50 * MS
        do_tasks(machine, 20, MS // 20)

    assert machine.words[0, cooperative_yield._LENGTH] == cooperative_yield.NEVER


def test_without_a_clock_nothing_happens():
    machine = Machine(4 * MS)
    machine.words[0, cooperative_yield._CLOCK] = 0

    do_tasks(machine, 1000, MS // 20)

    assert machine.gave_way == 0


@pytest.mark.parametrize(
    ("clock", "read"),
    [
        (cooperative_yield.TIME, time.monotonic_ns),
        (cooperative_yield.RUN_TIME, time.thread_time_ns),
    ],
)
def test_clocks_are_those_of_the_system(clock, read):
    function = int(cooperative_yield.new_quanta(1)[0, cooperative_yield._CLOCK])

    @njit
    def now():
        return atomics.read_clock(function, clock)

    now()
    before, here, after = read(), now(), read()

    assert before <= here <= after
    assert np.iinfo(np.int64).max > here
