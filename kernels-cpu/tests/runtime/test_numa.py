"""NUMA nodes of this machine, and of others described by files."""

import sys
from pathlib import Path

import numpy as np
import pytest
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu.codegen.memory import aligned
from spaninfer_kernels_cpu.runtime.numa import (
    Node,
    cpus_of,
    numa_nodes,
    place,
    prefer,
    read_nodes,
    shares,
)

MEGABYTE = 1 << 20


def machine(folder: Path, *cpu_lists: str) -> Path:
    for number, text in enumerate(cpu_lists):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(text + "\n")
    (folder / "possible").write_text("0-1\n")
    return folder


def test_nodes_are_read_with_the_cpus_that_the_process_may_use(tmp_path):
    folder = machine(tmp_path, "0-3,8-11", "4-7,12-15")

    nodes = read_nodes(folder, frozenset({2, 3, 4, 12}))

    assert nodes == (Node(0, frozenset({2, 3})), Node(1, frozenset({4, 12})))


def test_nodes_without_cpus_or_without_allowed_ones_are_left_out(tmp_path):
    folder = machine(tmp_path, "0-1", "2-3", "")

    assert read_nodes(folder, frozenset({2, 3})) == (Node(1, frozenset({2, 3})),)


def test_a_system_that_names_no_nodes_has_none(tmp_path):
    assert read_nodes(tmp_path / "node", frozenset({0})) == ()


def test_this_process_runs_on_a_node_at_least_and_no_more_than_it_has_threads():
    assert 1 <= len(numa_nodes()) <= usable_cpus()


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-1\n", {0, 1}), ("0,2-3", {0, 2, 3}), ("\n", set())]
)
def test_lists_of_cpus_are_understood(text, cpus):
    assert cpus_of(text) == cpus


@pytest.mark.parametrize("count", [0, 1, 5, 64])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_shares_are_neighbours_that_hold_every_row_once(count, nodes):
    ends = shares(count, nodes)

    assert [row for start, stop in ends for row in range(start, stop)] == list(range(count))
    assert len(ends) == nodes


def test_an_array_that_was_placed_on_nodes_holds_what_is_written():
    """Also where, as on most machines, a second node does not exist and the system refuses."""
    array = aligned((64, 1 << 16), np.uint8)

    place(array, (Node(0, frozenset({0})), Node(1, frozenset({1}))))
    array[:] = np.arange(64)[:, None]

    assert (array == np.arange(64)[:, None]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is asked for by a call of Linux")
def test_memory_of_a_node_is_asked_for_in_whole_pages():
    array = np.empty(4 * MEGABYTE, np.uint8)
    maps = Path("/proc/self/numa_maps")

    agreed = prefer(numa_nodes()[0], array.ctypes.data + 5, MEGABYTE)

    if agreed and maps.exists():
        number = numa_nodes()[0].number
        assert f"prefer:{number}" in maps.read_text()
