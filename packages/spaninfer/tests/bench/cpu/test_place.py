"""Where a benchmark runs."""

import os
from pathlib import Path

import pytest
from spaninfer.bench.cpu.place import busy, keep_to, place
from spaninfer_engine import ConfigError
from spaninfer_kernels_cpu import usable_cpus

CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def test_records_say_which_processor_how_many_threads_and_which_instructions():
    fields = place()

    assert fields["device"] == fields["cpu"]
    assert fields["threads"] == usable_cpus()
    assert fields["tier"]


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


@pytest.mark.skipif(not CHILDREN.exists(), reason="the system does not list a process's children")
def test_busy_processes_run_until_the_block_ends():
    before = CHILDREN.read_text().split()

    with busy(2):
        during = CHILDREN.read_text().split()

    assert len(during) == len(before) + 2
    assert CHILDREN.read_text().split() == before
