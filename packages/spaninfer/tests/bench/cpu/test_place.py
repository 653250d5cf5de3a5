"""The description of the machine that a benchmark runs on."""

import os
from pathlib import Path

import pytest
from spaninfer.bench.cpu.place import busy, physical_cores, place
from spaninfer_host_limits import usable_cpus

CHILDREN = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def test_records_say_which_processor_how_many_threads_and_which_instructions():
    fields = place()

    assert fields["device"] == fields["cpu"]
    assert fields["threads"] == usable_cpus()
    assert fields["tier"]
    if fields["cpus"] is not None:
        assert set(fields["cpus"]) == os.sched_getaffinity(0)
    if fields["physical_cores"] is not None:
        assert 1 <= fields["physical_cores"] <= len(fields["cpus"])


def test_cpus_of_one_core_count_once_and_nothing_is_said_where_the_system_does_not(tmp_path):
    for cpu, core in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / f"cpu{cpu}").write_text(core)
    said = f"{tmp_path}/cpu{{}}"

    assert physical_cores([0, 1], said) == 2
    assert physical_cores([0, 2], said) == 1
    assert physical_cores([0, 1, 2, 3], said) == 2
    assert physical_cores([0, 4], said) is None


@pytest.mark.skipif(not CHILDREN.exists(), reason="the system does not list a process's children")
def test_busy_processes_run_until_the_block_ends():
    before = children()

    with busy(2):
        ours = children() - before

    assert len(ours) == 2
    assert not ours & children()


def children() -> set[str]:
    """The processes that this one has started; those of tests before may be about to end."""
    return set(CHILDREN.read_text().split())
