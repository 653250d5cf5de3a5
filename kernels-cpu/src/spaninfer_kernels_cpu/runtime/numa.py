"""NUMA nodes: CPUs, and the part of the memory that they read fastest.

On a machine of several, a pool's threads belong to nodes in equal numbers, and so do the tasks of a
call and the panels of a packed weight: the first half of each to the first of two nodes. A thread
does the tasks of its own node first, and so reads weights that lie there.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

_NODES: Final = Path("/sys/devices/system/node")
_MBIND: Final = {"x86_64": 237, "aarch64": 235}.get(platform.machine())  # number of the call
_PREFERRED: Final = 1  # MPOL_PREFERRED: another node's memory will do where this one's is full

MAX_NODES: Final = 8  # that a thread pool knows


@dataclass(frozen=True, slots=True)
class Node:
    """A node's number, as the system counts, and those of its CPUs that the process may use."""

    number: int
    cpus: frozenset[int]


@cache
def numa_nodes() -> tuple[Node, ...]:
    """Return the nodes that threads of this process run on: one where the system names none.

    No more than there are threads, so that each has one, and at most MAX_NODES. Read once.
    """
    if not hasattr(os, "sched_getaffinity"):
        return (Node(0, frozenset()),)
    allowed = frozenset(os.sched_getaffinity(0))
    nodes = read_nodes(_NODES, allowed) or (Node(0, allowed),)
    return nodes[: min(MAX_NODES, usable_cpus())]


def read_nodes(folder: Path, allowed: frozenset[int]) -> tuple[Node, ...]:
    """Return the nodes that `folder`/node*/cpulist name, those with CPUs among the allowed ones."""
    numbers = sorted(int(path.name[4:]) for path in folder.glob("node[0-9]*"))
    nodes = [
        Node(number, cpus_of((folder / f"node{number}" / "cpulist").read_text()) & allowed)
        for number in numbers
    ]
    return tuple(node for node in nodes if node.cpus)


def cpus_of(text: str) -> frozenset[int]:
    """Return the CPUs of a list as the system writes it.

    >>> sorted(cpus_of("0-2,8"))
    [0, 1, 2, 8]
    """
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))


def bind_thread(node: Node) -> None:
    """Keep the calling thread to a node's CPUs, where the system can do that."""
    if node.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, node.cpus)


def place(array: NDArray[Any], nodes: tuple[Node, ...]) -> None:
    """Move each node's share of an array's rows into its memory; a no-op on one node.

    The array has not been written yet: the system gives memory at the first write. Where the system
    refuses (a container may not), memory is the writing thread's, and only slower to read.
    """
    if len(nodes) < 2:
        return
    for node, (start, stop) in zip(nodes, shares(len(array), len(nodes)), strict=True):
        part = array[start:stop]
        prefer(node, part.ctypes.data, part.nbytes)


def shares(count: int, nodes: int) -> tuple[tuple[int, int], ...]:
    """Return the first and the end of each node's share of that many rows: equal but for the last.

    >>> shares(7, 2)
    ((0, 4), (4, 7))
    """
    each = -(-count // nodes)
    return tuple((min(count, each * n), min(count, each * (n + 1))) for n in range(nodes))


def prefer(node: Node, address: int, num_bytes: int) -> bool:
    """Allocate untouched memory on a node, in whole pages; return True if it may.

    The pages at both ends, which others may share, stay as they are.
    """
    if sys.platform != "linux" or _MBIND is None:
        return False
    page = os.sysconf("SC_PAGE_SIZE")
    start, stop = -(-address // page) * page, (address + num_bytes) // page * page
    if start >= stop:
        return True
    mask = ctypes.c_ulong(1 << node.number)
    bits = ctypes.c_ulong(8 * ctypes.sizeof(mask))
    system = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_void_p(start), ctypes.c_ulong(stop - start)
    flags = ctypes.c_uint(0)
    refused: int = system.syscall(_MBIND, *where, _PREFERRED, ctypes.byref(mask), bits, flags)
    return refused == 0
