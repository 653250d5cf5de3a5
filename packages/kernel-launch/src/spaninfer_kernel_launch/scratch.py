"""Memory that kernels use while they run: scratch, and a ticket from which thread blocks draw.

Kernels on one stream run one after another, so each may write what those before have left. A thread
therefore keeps a piece of memory for each of its streams, as long as the process runs: a call need
not allocate its scratch, which takes 2.2 µs, nor clear a ticket, four bytes that are zero before a
kernel and after it. Threads do not share one, because their launches may come in turns. Launches
that are captured into a graph may run on any stream: these need memory of their own.
"""

from __future__ import annotations

from threading import get_ident
from typing import Final, TypeAlias

import numpy as np

from spaninfer_kernel_launch.driver import call_driver, driver
from spaninfer_kernel_launch.errors import OutOfMemory
from spaninfer_kernel_launch.framework import torch
from spaninfer_kernel_launch.gpu import Gpu
from spaninfer_kernel_launch.memory import Result, allocator, take_memory
from spaninfer_kernel_launch.stream import is_capturing
from spaninfer_kernel_launch.view import ArraySpec, is_of_torch, pointer_of

PART_BYTES: Final = 256  # a ticket and parts of scratch begin at multiples
KEPT_BYTES: Final = 1 << 20  # kernels that need more run for longer than an allocation takes
_MOST: Final = 256  # pieces

Addresses: TypeAlias = tuple[int, int]
"""Those of a ticket and of scratch."""

_KEPT: Final[dict[tuple[int, int, int], Addresses]] = {}  # by GPU, stream and thread


class Scratch:
    """A ticket and `num_bytes` of scratch for the kernels of one call; `like` is one of its arrays.

    `draws` says that they use the ticket.
    """

    def __init__(self, like: ArraySpec, gpu: Gpu, num_bytes: int, *, draws: bool) -> None:
        self._gpu, self._draws, self._fits = gpu, draws, num_bytes <= KEPT_BYTES
        own: Result = ("scratch", (PART_BYTES + num_bytes,), np.uint8, PART_BYTES)
        self._allocate = allocator(like, gpu, own)
        self._is_captured = torch().cuda.is_current_stream_capturing if is_of_torch(like) else None

    def take(self, stream: int, is_current: bool) -> tuple[Addresses, object]:
        """Return both for kernels on this stream, and what to hold until these are started;
        `is_current` is as for `Allocate`.
        """
        kept = None
        if not (self._is_captured() if is_current and self._is_captured else is_capturing(stream)):
            own = self._gpu.index, stream, get_ident()
            kept = _KEPT.get(own) or _keep(own, self._gpu)
            if kept is not None and self._fits:
                return kept, None
        (memory,) = self._allocate(stream, is_current)
        ticket = pointer_of(memory)
        scratch = ticket + PART_BYTES
        if kept is not None:
            ticket, _ = kept
        elif self._draws:
            _clear(ticket, stream, self._gpu)
        return (ticket, scratch), memory


def _keep(own: tuple[int, int, int], gpu: Gpu) -> Addresses | None:
    """Return the memory that this thread keeps for a stream from now on; None without any."""
    if len(_KEPT) >= _MOST:
        return None
    _, stream, _ = own
    try:
        ticket = take_memory(PART_BYTES + KEPT_BYTES, gpu, stream)
    except OutOfMemory:  # torch may have some in reserve
        return None
    _clear(ticket, stream, gpu)
    _KEPT[own] = ticket, ticket + PART_BYTES
    return _KEPT[own]


def _clear(address: int, stream: int, gpu: Gpu) -> None:
    """Make memory at this address a ticket, in the stream's order."""
    with gpu.current():
        call_driver(driver().cuMemsetD32Async, address, 0, 1, stream)
