"""Tickets: four bytes from which thread blocks draw numbers, zero before a kernel and after it.

Kernels that run one after another share one, so each stream has its own, for as long as the process
runs. Launches that are captured into a graph may run on any stream: these need one of their own.
"""

from __future__ import annotations

from typing import Final

from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.memory import take_memory

TICKET_BYTES: Final = 4
_PER_THREAD: Final = 2  # one handle for the default streams of all threads
_MOST: Final = 1024

_TICKETS: dict[tuple[int, int], int] = {}  # by GPU and stream: never freed, streams may end before


def ticket_of(stream: int, gpu: Gpu) -> int | None:
    """Return the address of a stream's ticket.

    None where its kernels need another: while it is being captured, for the default streams of
    threads, which have one handle, and if very many streams have tickets.
    """
    status, capturing = driver().cuStreamIsCapturing(stream)
    if status or capturing or stream == _PER_THREAD:
        return None
    ticket = _TICKETS.get((gpu.index, stream))
    if ticket is None and len(_TICKETS) < _MOST:
        ticket = take_memory(TICKET_BYTES, gpu, stream)
        clear_ticket(ticket, stream, gpu)
        _TICKETS[gpu.index, stream] = ticket
    return ticket


def clear_ticket(address: int, stream: int, gpu: Gpu) -> None:
    """Make memory at this address a ticket, in the stream's order."""
    with gpu.current():
        call_driver(driver().cuMemsetD32Async, address, 0, 1, stream)
