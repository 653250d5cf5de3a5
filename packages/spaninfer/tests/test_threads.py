"""--threads: the CPUs that a process is confined to."""

import os
import subprocess
import sys

import pytest
from spaninfer.threads import keep_to, num_api_servers
from spaninfer_engine import ConfigError
from spaninfer_host_limits import usable_cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_more_threads_than_cpus_are_refused_and_nothing_changes():
    before = os.sched_getaffinity(0)

    with pytest.raises(ConfigError, match="may use"):
        keep_to(len(before) + 1)

    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(usable_cpus() < 2, reason="needs two CPUs")
def test_fewer_threads_than_kernels_have_counted_are_refused_and_nothing_changes():
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    with pytest.raises(ConfigError):
        keep_to(1)

    if before is not None:
        assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_kernels_of_a_process_that_keeps_to_one_cpu_count_one():
    program = (
        "from spaninfer.cli import app; from spaninfer_host_limits import usable_cpus\n"
        "app(['info', '--threads', '1'], standalone_mode=False); print(usable_cpus())"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.splitlines()[-1] == "1"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX system")
def test_a_server_has_an_api_server_where_there_is_a_cpu_for_it():
    assert [num_api_servers(None, threads) for threads in (1, 2, 8)] == [0, 1, 1]
    assert [num_api_servers(asked, 1) for asked in (0, 3)] == [0, 3]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_that_may_use_one_cpu_has_none():
    program = "from spaninfer.threads import num_api_servers; print(num_api_servers(None))"
    first, *others = sorted(os.sched_getaffinity(0))

    def count(cpus):
        confined = f"import os; os.sched_setaffinity(0, {cpus}); {program}"
        return subprocess.check_output([sys.executable, "-c", confined], text=True).strip()

    assert count([first]) == "0"
    assert not others or count([first, others[0]]) == "1"
