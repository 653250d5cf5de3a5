"""CPU affinity of workers: one CPU each, and the caller's for the caller."""

import os
import threading

import pytest
from spaninfer_kernels_cpu.runtime.cpu_affinity import CpuAffinity, cpu_affinity_for
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be kept here"),
]
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
several = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture
def workers():
    """The system's numbers of threads that wait, one fewer than there are CPUs."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in CPUS[1:]]
    for thread in threads:
        thread.start()
    yield [thread.native_id for thread in threads]
    done.set()
    for thread in threads:
        thread.join()


def seats_of(workers):
    return [os.sched_getaffinity(worker) for worker in workers]


@several
def test_every_cpu_but_the_callers_has_a_worker(workers):
    CpuAffinity(workers, CPUS, lambda: CPUS[-1])

    assert seats_of(workers) == [{cpu} for cpu in CPUS[:-1]]


@several
def test_a_worker_swaps_cpus_with_a_caller_that_was_moved(workers):
    here = [CPUS[-1]]
    affinity = CpuAffinity(workers, CPUS, lambda: here[0])

    for place in (CPUS[0], CPUS[0], CPUS[-1]):
        here[0] = place
        affinity.keep_apart()

        assert sorted(cpu for seat in seats_of(workers) for cpu in seat) == sorted(
            {*CPUS} - {place}
        )


@several
def test_a_caller_outside_of_the_cpus_displaces_no_worker(workers):
    affinity = CpuAffinity(workers, CPUS, lambda: -1)
    before = seats_of(workers)

    affinity.keep_apart()

    assert seats_of(workers) == before


def test_a_worker_that_the_system_refuses_to_pin_stays_where_it_is():
    nobody = 2**22 + 1  # no thread has so large a number
    here = [0]
    affinity = CpuAffinity([nobody], [0, 1], lambda: here[0])
    before = os.sched_getaffinity(0)

    here[0] = 1  # where the helper would be
    affinity.keep_apart()

    assert os.sched_getaffinity(0) == before  # the caller is never seated


@several
def test_workers_of_a_pool_are_pinned_where_there_is_one_for_every_cpu():
    with ThreadPool(len(CPUS)) as thread_pool:
        affinity = seats_of([worker.native_id for worker in thread_pool._workers])
    with ThreadPool(len(CPUS) + 1) as thread_pool:
        unseated = seats_of([worker.native_id for worker in thread_pool._workers])

    assert len({*map(tuple, affinity)}) == len(CPUS) - 1
    assert all(seat == {*CPUS} for seat in unseated)


def test_a_caller_alone_is_not_pinned():
    assert cpu_affinity_for([]) is None
