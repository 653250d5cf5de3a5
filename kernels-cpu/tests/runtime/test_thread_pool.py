"""The thread pool: every task once, calls in order, for any number of workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.runtime.call import ITEMS, LOGITS, Call, Script
from spaninfer_kernels_cpu.runtime.numa import Node
from spaninfer_kernels_cpu.runtime.thread_pool import (
    _LINE,
    _PARKED,
    ThreadPool,
    _begin,
    _work_off,
)


@dataclass(frozen=True, slots=True)
class Adding(Arguments):
    """A value for numbers of an array."""

    numbers: int
    value: int


def add_at_task(arguments: Adding, tokens: int, task: int) -> None:  # noqa: ARG001
    """Add an argument to number `task` of an array."""
    numbers_at(arguments.numbers + 8 * task, 1, np.int64)[0] += arguments.value


@dataclass(frozen=True, slots=True)
class Summing(Arguments):
    """An array, and where its sum is written."""

    numbers: int
    out: int


def sum_into(arguments: Summing, tokens: int, task: int) -> None:
    """Write the sum of `tokens` numbers of one array to place `task` of another."""
    total = 0
    for number in numbers_at(arguments.numbers, tokens, np.int64):
        total += number
    numbers_at(arguments.out + 8 * task, 1, np.int64)[0] = total


@dataclass(frozen=True, slots=True)
class Remembering(Arguments):
    """An array of numbers."""

    order: int


def remember_order(arguments: Remembering, tokens: int, task: int) -> None:  # noqa: ARG001
    """Write to number `task` of an array how many tasks were done before; number 0 counts them."""
    order = numbers_at(arguments.order, 1000, np.int64)
    order[1 + task] = order[0]
    order[0] += 1


def _nodes(count: int) -> tuple[Node, ...]:
    """So many nodes of a machine that is not this one: no thread is kept to their CPUs."""
    return tuple(Node(number, frozenset()) for number in range(count))


def _adding(numbers: np.ndarray, value: int, **cut: int) -> Call:
    return Call(add_at_task, Adding(numbers.ctypes.data, value), **cut)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_task_of_every_call_is_done_once(num_threads: int) -> None:
    numbers = np.zeros(100, np.int64)
    script = Script([_adding(numbers, value) for value in range(50)])

    with ThreadPool(num_threads) as thread_pool:
        for _ in range(200):
            thread_pool.run(script, [100])

    assert (numbers == 200 * sum(range(50))).all()


@pytest.mark.parametrize(("num_threads", "num_nodes"), [(2, 2), (5, 2), (5, 3), (3, 5)])
@pytest.mark.parametrize("tasks", [1, 7, 100])
def test_nodes_share_the_tasks_and_every_one_is_done_once(num_threads, num_nodes, tasks):
    numbers = np.zeros(tasks, np.int64)
    script = Script([_adding(numbers, value) for value in range(50)])

    with ThreadPool(num_threads, _nodes(num_nodes)) as thread_pool:
        for _ in range(200):
            thread_pool.run(script, [tasks])

    assert (numbers == 200 * sum(range(50))).all()


@pytest.mark.parametrize(
    ("home", "order"), [(0, [0, 1, 2, 3, 4, 5, 6]), (1, [3, 4, 5, 6, 0, 1, 2])]
)
def test_a_thread_does_the_tasks_of_its_node_first(home, order):
    done = np.zeros(1000, np.int64)
    script = Script([Call(remember_order, Remembering(done.ctypes.data))])

    with ThreadPool(2, _nodes(2)) as thread_pool:
        pass  # its helper has ended: what follows is done by this thread alone
    counts = np.array([7], np.int64)
    _begin(thread_pool._base, script.address, 1, counts.ctypes.data, 1, 1)
    _work_off(thread_pool._base, home, thread_pool._quantum(0))

    assert np.argsort(done[1:8]).tolist() == order


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_call_sees_what_all_tasks_of_the_one_before_wrote(num_threads: int) -> None:
    first, second = np.zeros((2, 16), np.int64)
    calls = []
    for source, into in 10 * [(first, second), (second, first)]:
        calls.append(Call(sum_into, Summing(source.ctypes.data, into.ctypes.data)))
    script = Script(calls)

    with ThreadPool(num_threads) as thread_pool:
        for _ in range(50):
            first[:] = 1
            thread_pool.run(script, [2])

            assert first[0] == first[1] == 2**20


def test_tasks_are_cut_by_tokens_logits_and_items() -> None:
    numbers = np.zeros((3, 32), np.int64)
    script = Script(
        [
            _adding(numbers[0], 1, tasks=3, tokens_per_task=4),
            _adding(numbers[1], 1, count=LOGITS),
            _adding(numbers[2], 1, tasks=2, count=ITEMS),
        ]
    )

    with ThreadPool(2) as thread_pool:
        thread_pool.run(script, [9, 5, 2])

    assert [int(row.sum()) for row in numbers] == [9, 5, 4]


@pytest.mark.parametrize("num_calls", [0, 1, 7])
def test_calls_without_tasks_are_passed_over(num_calls: int) -> None:
    numbers = np.zeros(4, np.int64)
    nothing = [_adding(numbers, 1, count=LOGITS)] * num_calls
    script = Script([*nothing, _adding(numbers, 1), *nothing])

    with ThreadPool(2) as thread_pool:
        thread_pool.run(script, [4, 0])
        thread_pool.run(Script(nothing), [4, 0])

    assert (numbers == 1).all()


def test_workers_that_have_gone_to_sleep_come_back() -> None:
    numbers = np.zeros(1000, np.int64)

    with ThreadPool(3) as thread_pool:
        for count in range(5):
            thread_pool.run(Script([_adding(numbers, 1)]), [1000])  # its memory is gone right after
            time.sleep(0.01 * count)

    assert (numbers == 5).all()


def test_a_script_that_wakes_no_worker_leaves_parked_ones_alone() -> None:
    numbers = np.zeros(1000, np.int64)
    script = Script([_adding(numbers, 1)])

    with ThreadPool(3) as thread_pool:
        parked = thread_pool._state[_PARKED::_LINE][:2]
        deadline = time.monotonic() + 120
        while not parked.all():
            assert time.monotonic() < deadline, parked
            time.sleep(0.01)
        thread_pool.run(script, [1000], wakes=False)
        stayed = parked.tolist()
        thread_pool.run(script, [1000])

    assert stayed == [1, 1]
    assert (numbers == 2).all()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux about threads")
def test_workers_sleep_when_nothing_has_come_for_a_while() -> None:
    """Neither spinning nor yielding, which would be state R."""
    numbers = np.zeros(1000, np.int64)

    def states() -> set[str]:
        stats = [Path(f"/proc/self/task/{each.native_id}/stat") for each in thread_pool._workers]
        return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}

    with ThreadPool(4) as thread_pool:
        thread_pool.run(Script([_adding(numbers, 1)]), [1000])
        deadline = time.monotonic() + 120
        while states() != {"S"}:
            assert time.monotonic() < deadline, states()
            time.sleep(0.01)


def test_a_closed_thread_pool_refuses_work() -> None:
    thread_pool = ThreadPool(2)
    thread_pool.close()
    thread_pool.close()

    with pytest.raises(RuntimeError, match="make another one"):
        thread_pool.run(Script([]), [1])


def test_an_exception_of_the_caller_ends_the_workers_and_stays() -> None:
    with pytest.raises(KeyError), ThreadPool(3) as thread_pool:
        raise KeyError

    assert not any(worker.is_alive() for worker in thread_pool._workers)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_trace_has_every_task_in_the_order_of_calls(num_threads):
    numbers = np.zeros(40, np.int64)
    calls = [Call(add_at_task, Adding(numbers.ctypes.data, value), 40) for value in (1, 2)]
    script = Script(calls)
    with ThreadPool(num_threads) as thread_pool:
        thread_pool.run(script, [1])
        with thread_pool.traced() as trace:
            thread_pool.run(script, [1])
        thread_pool.run(script, [1])

    (run,) = trace.runs
    assert (run.script, numbers.tolist()) == (script, [9] * 40)
    assert len(trace.threads) == num_threads
    tasks = [np.stack(each) for each in trace.threads]
    script_at, call, began, ended = np.concatenate(tasks, axis=1)
    assert set(script_at) == {script.address}
    assert np.bincount(call).tolist() == [40, 40]
    assert run.began <= began.min()
    assert ended.max() <= run.ended
    assert (began <= ended).all()
    assert ended[call == 0].max() <= began[call == 1].min()
