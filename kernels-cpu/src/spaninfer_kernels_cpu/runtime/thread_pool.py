"""A thread pool that runs scripts: calls one after the other, the tasks of each shared.

One word says which call is open and how many of its tasks are left. A free thread takes one
with a compare-and-swap; the thread that finishes a call's last task opens the next call. There is
no barrier: a thread that the system holds up delays the others only while it holds a task, and one
that comes late finds the open call by itself. The caller works too, and alone if no other comes.

On a machine of several NUMA nodes each has a word of its own, with its share of the tasks: a thread
takes those of its node first (`numa`), then what is left elsewhere. All words are written before
the first can be written anew: opening a call counts as one of its tasks, and that of node 0, which
alone says that a script is over, is written last.

Who finds no task spins at first, because calls are short, then yields to other programs. Beside a
program that wants one of the CPUs, threads keep to CPUs of their own (`cpu_affinity`) and yield
between tasks, not inside of one (`cooperative_yield`). Between scripts workers spin, and yield, for
about as long as an engine plans its next step, then park on a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Lock, Thread
from time import monotonic_ns

import numpy as np
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen import atomics
from spaninfer_kernels_cpu.codegen.arguments import struct_at
from spaninfer_kernels_cpu.codegen.compiled import entry, make_ready
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import read_int64
from spaninfer_kernels_cpu.runtime import cooperative_yield, task_trace
from spaninfer_kernels_cpu.runtime.call import HEADER_BYTES, MAX_COUNTS, CallHeader, Script
from spaninfer_kernels_cpu.runtime.cpu_affinity import cpu_affinity_for
from spaninfer_kernels_cpu.runtime.numa import MAX_NODES, Node, bind_thread, numa_nodes
from spaninfer_kernels_cpu.runtime.task_trace import CAPACITY, ScriptRun, TaskTrace

TASK_BITS = 22  # of the word: a call has fewer tasks; the other bits number calls for years

# Words of the state. Those that every thread writes have 128 bytes to themselves: CPUs fetch cache
# lines of 64 bytes in pairs.
_LINE = 16
_OPEN = 0  # of each node: number of the open call << TASK_BITS | how many tasks are not taken
_TASKS = MAX_NODES * _LINE  # of the open call
_DONE = _TASKS + _LINE  # tasks of the open call that are finished
_SCRIPT = _DONE + _LINE  # grows by 2 with every script; odd while the words behind it are written
_CALLS = _SCRIPT + 1  # address of the headers
_LAST = _SCRIPT + 2  # number behind the script's last call
_FIRST = _SCRIPT + 3  # number of its first
_COUNT = _SCRIPT + 4  # the counts of the step
_CLOSED = _COUNT + MAX_COUNTS
_NODES = _CLOSED + 1  # how many there are
_PARKED = _SCRIPT + 2 * _LINE  # 16 words per worker: is it about to wait for its lock, and
_SEEN = 1  # behind it, the last script that it took part in
assert _NODES < _PARKED

PAUSES = 4000  # before a thread yields, 200 µs: a panel of a product takes up to 30
PATIENCE = 5500  # of a worker between scripts, 1 ms: an engine plans 0.7 to 0.9 ms on a Zen 4
LOOK_EVERY = 4  # tasks: the clock takes 40 ns, as much as taking a task; the longest last 100 µs


class ThreadPool:
    """`num_threads` threads, the caller's among them, that run scripts one at a time.

    Where there are several `nodes` (those of the machine), workers are kept to the CPUs of theirs;
    the caller counts as one of the first. A context manager. Workers are daemons: a process may end
    without `close`.
    """

    def __init__(
        self, num_threads: int | None = None, nodes: tuple[Node, ...] | None = None
    ) -> None:
        self.num_threads = usable_cpus() if num_threads is None else num_threads
        self._nodes = (numa_nodes() if nodes is None else nodes)[: self.num_threads]
        make_thread_pool_ready()
        self._running = Lock()
        self._state = np.zeros(_PARKED + self.num_threads * _LINE, np.int64)
        self._base: int = self._state.ctypes.data
        self._state[_NODES] = len(self._nodes)
        self._quanta = cooperative_yield.new_quanta(self.num_threads)
        self._turns: int = self._quanta.ctypes.data
        self._counts = np.zeros(MAX_COUNTS, np.int64)  # of the script that begins
        self._counts_at: int = self._counts.ctypes.data
        self._trace: TaskTrace | None = None
        self._locks = [Lock() for _ in range(self.num_threads - 1)]
        self._workers = [
            Thread(target=self._work, args=(number,), name=f"spaninfer-team-{number}", daemon=True)
            for number in range(len(self._locks))
        ]
        for lock, worker in zip(self._locks, self._workers, strict=True):
            lock.acquire()
            worker.start()
        numbers = [worker.native_id for worker in self._workers if worker.native_id is not None]
        self._affinity = cpu_affinity_for(numbers) if len(self._nodes) == 1 else None

    def run(self, script: Script, counts: Sequence[int], *, wakes: bool = True) -> None:
        """Run all calls of a script, cut by these counts (see `call`), to the end.

        Without `wakes`, workers that are parked stay so: it takes them 50 µs to come, and they spin
        for a millisecond behind a script.
        """
        with self._running:
            if self._state[_CLOSED]:
                raise RuntimeError("this team was closed; make another one")
            if self._affinity is not None:
                self._affinity.keep_apart()
            began = monotonic_ns()
            self._begin(script.address, len(script), counts, wakes=wakes)
            _work_off(self._base, 0, self._quantum(0))
            if self._trace is not None and not self._trace.is_full:
                self._trace.runs.append(ScriptRun(script, began, monotonic_ns()))

    @contextmanager
    def traced(self, capacity: int = CAPACITY) -> Iterator[TaskTrace]:
        """Give a trace of all scripts that run meanwhile; times in it cost 0.1 µs a task.

        It ends with the script in which a thread had more than `capacity` tasks in all.
        """
        trace = TaskTrace(self.num_threads, capacity)
        self._set_trace(trace)
        try:
            yield trace
        finally:
            self._set_trace(None)

    def _set_trace(self, trace: TaskTrace | None) -> None:
        with self._running:
            self._trace = trace
            addresses = [0] * self.num_threads if trace is None else trace.addresses
            self._quanta[:, cooperative_yield.TRACE] = addresses

    def close(self) -> None:
        """End the workers; idempotent."""
        with self._running:
            self._state[_CLOSED] = 1
            self._begin(0, 0, (), wakes=True)
        for worker in self._workers:
            worker.join()

    def __enter__(self) -> ThreadPool:
        """Return the thread pool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close; the caller's exception stays."""
        self.close()

    def _begin(self, calls: int, num_calls: int, counts: Sequence[int], *, wakes: bool) -> None:
        """Open a script for all threads, and wake those that are parked."""
        self._counts[: len(counts)] = counts
        places = (self._base, calls, num_calls, self._counts_at, len(counts))
        if _begin(*places, len(self._locks) if wakes else 0):
            for number, lock in enumerate(self._locks):
                if _unpark(self._base, number):
                    lock.release()

    def _quantum(self, thread: int) -> int:
        """Return the address of a thread's turn; the caller is thread 0."""
        return self._turns + thread * cooperative_yield.WORDS * self._quanta.itemsize

    def _work(self, number: int) -> None:
        home = (number + 1) * len(self._nodes) // self.num_threads
        if len(self._nodes) > 1:
            bind_thread(self._nodes[home])
        quantum = self._quantum(number + 1)
        while not self._state[_CLOSED]:
            if _serve(self._base, number, home, quantum):
                self._locks[number].acquire()


@cache
def shared_thread_pool() -> ThreadPool:
    """Return the thread pool of this process: a thread per usable CPU."""
    return ThreadPool()


@cache
def make_thread_pool_ready() -> None:
    """Compile the native loop of thread pools, or load it from the cache."""
    make_ready(_begin, _work_off, _unpark, _serve)


# ---- what threads do, without Python's lock ------------------------------------------------------
# `base` is the address of the state. Words that other threads write meanwhile are read atomically.


_header_at = struct_at(CallHeader)


@entry
def _begin(
    base: int, calls: int, num_calls: int, counts: int, num_counts: int, workers: int
) -> bool:
    """Open a script's first call; return whether a worker may have to be woken."""
    first = atomics.load(_open_word(base, 0)) >> TASK_BITS
    atomics.add(base + 8 * _SCRIPT, 1)
    atomics.store(base + 8 * _CALLS, calls)
    atomics.store(base + 8 * _FIRST, first)
    atomics.store(base + 8 * _LAST, first + num_calls)
    for i in range(num_counts):
        atomics.store(base + 8 * (_COUNT + i), read_int64(counts, i))
    _open(base, calls, first, first, first + num_calls)
    atomics.add(base + 8 * _SCRIPT, 1)
    parked = 0
    for worker in range(workers):
        parked |= atomics.load(_parked(base, worker))
    return parked != 0


@device_function
def _open(base: int, calls: int, first: int, number: int, last: int) -> None:
    """Open call `number`, or the next one that has tasks, or say that there is none.

    With several nodes, all tasks may be done before the last word is written: then go on.
    """
    nodes = read_int64(base, _NODES)
    while True:
        tasks = 0
        while number < last:
            call = _header_at(calls + (number - first) * HEADER_BYTES)
            count = read_int64(base, _COUNT + call.count)
            tasks = (count + call.tokens_per_task - 1) // call.tokens_per_task * call.tasks
            if tasks > 0:
                break
            number += 1
        atomics.store(base + 8 * _DONE, 0)
        atomics.store(base + 8 * _TASKS, tasks)
        for node in range(nodes - 1, -1, -1):
            left = _end_of_share(tasks, node, nodes) - _end_of_share(tasks, node - 1, nodes)
            atomics.store(_open_word(base, node), number << TASK_BITS | left)
        if nodes == 1 or number == last or not _is_last(base, tasks):
            return
        number += 1


@device_function
def _is_last(base: int, tasks: int) -> bool:
    """Count a task of the open call as done, or its opening; return whether nothing is left."""
    opening = 1 if read_int64(base, _NODES) > 1 else 0
    done: int = atomics.add(base + 8 * _DONE, 1) + 1
    return done == tasks + opening


@device_function
def _end_of_share(tasks: int, node: int, nodes: int) -> int:
    """Return the number behind a node's last task; nodes count from 0."""
    if node < 0:
        return 0
    return tasks if node + 1 == nodes else tasks * (node + 1) // nodes


@device_function
def _open_word(base: int, node: int) -> int:
    return base + 8 * (_OPEN + node * _LINE)


@entry
def _work_off(base: int, home: int, quantum: int) -> None:
    """Take part as the thread that began the script."""
    _take_part(base, home, quantum)


@device_function
def _take_part(base: int, home: int, quantum: int) -> None:
    """Run tasks until the latest script is over, those of node `home` first.

    A header is read only by who has a task of its call, or opens it: a thread that comes late may
    find that the script's memory is gone.
    """
    script = 1
    calls = first = last = 0
    while script & 1 or script != atomics.load(base + 8 * _SCRIPT):
        script = atomics.load(base + 8 * _SCRIPT)
        calls, first, last = (
            read_int64(base, _CALLS),
            read_int64(base, _FIRST),
            read_int64(base, _LAST),
        )
        atomics.fence()
    nodes = read_int64(base, _NODES)
    cooperative_yield.resume(quantum)
    trace = read_int64(quantum, cooperative_yield.TRACE)
    idle = distance = done = began = 0
    while True:
        node = home + distance - (nodes if home + distance >= nodes else 0)
        now = atomics.load(_open_word(base, node))
        number, left = now >> TASK_BITS, now & ((1 << TASK_BITS) - 1)
        if number >= last and node == 0:
            return
        if number >= last or left == 0:
            distance += 1
            if distance == nodes:
                distance = 0
                idle += 1
                _wait(quantum, idle)
        elif done % LOOK_EVERY == 0 and cooperative_yield.is_over(quantum):
            cooperative_yield.end(quantum)
        elif atomics.replace(_open_word(base, node), now, now - 1):
            idle = distance = 0
            done += 1
            tasks = atomics.load(base + 8 * _TASKS)
            call = _header_at(calls + (number - first) * HEADER_BYTES)
            count = read_int64(base, _COUNT + call.count)
            task = _end_of_share(tasks, node, nodes) - left
            if trace != 0:
                began = cooperative_yield.time_ns(quantum)
            atomics.call_kernel(call.kernel, call.arguments, count, task)
            if trace != 0:
                task_trace.note(
                    trace, calls, number - first, began, cooperative_yield.time_ns(quantum)
                )
            if _is_last(base, tasks):
                _open(base, calls, first, number + 1, last)


@device_function
def _wait(quantum: int, idle: int) -> None:
    """Let some time pass: little at first."""
    if idle < PAUSES:
        atomics.pause()
    else:
        cooperative_yield.yield_cpu(quantum)


@entry
def _serve(base: int, number: int, home: int, quantum: int) -> bool:
    """Take part in scripts until none begins for a while, or the thread pool is closed.

    Return whether the worker is to wait for its lock.
    """
    script, parked = base + 8 * _SCRIPT, _parked(base, number)
    seen = read_int64(parked, _SEEN)
    waited = 0
    while atomics.load(base + 8 * _CLOSED) == 0:
        now = atomics.load(script)
        if now != seen and now & 1 == 0:
            seen, waited = now, 0
            atomics.store(parked + 8 * _SEEN, now)
            _take_part(base, home, quantum)
        elif waited < PATIENCE:
            waited += 1
            _wait(quantum, waited)
        else:
            atomics.exchange(parked, 1)
            if atomics.load(script) == seen or not atomics.exchange(parked, 0):
                return True
    return False


@entry
def _unpark(base: int, number: int) -> bool:
    """Return whether a worker waits for its lock, or will; the lock must be released then."""
    was_parked: bool = atomics.exchange(_parked(base, number), 0) == 1
    return was_parked


@device_function
def _parked(base: int, number: int) -> int:
    return base + 8 * (_PARKED + number * _LINE)
