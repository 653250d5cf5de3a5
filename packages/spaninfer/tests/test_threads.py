"""--threads: the CPUs that a process keeps to."""

import os
import subprocess
import sys

import pytest
from spaninfer.threads import keep_to
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
