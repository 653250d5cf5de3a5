import os
import subprocess
import sys
import time

import pytest
from spaninfer.bench.process_usage import (
    busy_cpus_s,
    children,
    cpu_s,
    cpu_wait_s,
    rss_mib,
    tree,
)

NOBODY = 1 << 22  # more than any pid of Linux

# Says the number of a child of its own, and waits for its input to end, as that does.
PARENT = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=sys.stdin) as child:
    print(child.pid, flush=True)
"""

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


@only_linux
def test_a_process_is_told_its_own_usage():
    before = cpu_s(os.getpid())
    while time.process_time() < before + 0.05:
        pass

    assert cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)
    assert 1 < rss_mib(os.getpid()) <= rss_mib(os.getpid(), "VmHWM")


@only_linux
def test_the_processes_below_one_are_found_and_theirs():
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        child = int(parent.stdout.readline())

        assert children(parent.pid) == [child]
        assert tree(parent.pid) == [parent.pid, child]
        assert {parent.pid, child} <= set(tree(os.getpid()))

        parent.communicate("\n")
    assert children(parent.pid) == []


def test_of_a_process_that_there_is_not_nothing_is_known():
    assert cpu_s(NOBODY) == 0.0
    assert rss_mib(NOBODY) is None
    assert tree(NOBODY) == [NOBODY]


@only_linux
def test_all_processes_together_are_busy_for_as_long_as_one_at_least():
    before = busy_cpus_s()
    begin = time.process_time()
    while time.process_time() < begin + 0.1:
        pass

    assert busy_cpus_s() - before > 0.05  # ticks are 10 ms


@only_linux
def test_of_two_processes_that_share_a_cpu_each_waits_for_it():
    before = cpu_wait_s(os.getpid())
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            begin = time.process_time()
            while time.process_time() < begin + 0.2:
                pass
            other.kill()
    finally:
        os.sched_setaffinity(0, cpus)

    assert cpu_wait_s(os.getpid()) - before > 0.02


def test_nobody_waits_for_no_cpu():
    assert cpu_wait_s(NOBODY) is None
