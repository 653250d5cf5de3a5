"""Memory that kernels use while they run: scratch, and a ticket from which thread blocks draw.

Kernels on one stream run one after another, so each may write what those before have left. A thread
therefore keeps a piece of memory for each of its streams, as long as the process runs: a call need
not allocate its scratch, which takes 2.2 µs, nor clear a ticket, four bytes that are zero before a
kernel and after it. Threads do not share one, because their launches may come in turns. Launches
that are captured into a graph may run on any stream: these need memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import Final

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

_KEPT: Final[dict[tuple[int, int, int], int]] = {}  # by GPU, stream and thread


class Scratch:
    """A ticket and parts of scratch for the kernels of one call.

    `like` is one of its arrays, `begins` are where the parts begin in `num_bytes`; `draws` says
    that kernels use the ticket.
    """

    def __init__(
        self, like: ArraySpec, gpu: Gpu, num_bytes: int, begins: Iterable[int], *, draws: bool
    ) -> None:
        self._gpu, self._begins, self._draws = gpu, (*begins,), draws
        self._fits = num_bytes <= KEPT_BYTES
        own: Result = ("scratch", (PART_BYTES + num_bytes,), np.uint8, PART_BYTES)
        self._allocate = allocator(like, gpu, own)
        self._is_captured = torch().cuda.is_current_stream_capturing if is_of_torch(like) else None
        self._lent: dict[tuple[int, int], tuple[int, ...]] = {}  # by stream and thread

    def take(self, stream: int, is_current: bool) -> tuple[tuple[int, ...], object]:
        """Return addresses, the ticket's first, for kernels on this stream, and what to hold until
        these are started; `is_current` is as for `Allocate`.
        """
        own = stream, get_ident()
        if self._is_captured() if is_current and self._is_captured else is_capturing(stream):
            return self._take_new(None, stream, is_current)
        if (lent := self._lent.get(own)) is not None:
            return lent, None
        kept = _kept(self._gpu, *own)
        if kept is None or not self._fits:
            return self._take_new(kept, stream, is_current)
        self._lent[own] = self._addresses(kept, kept)
        return self._lent[own], None

    def _take_new(
        self, ticket: int | None, stream: int, is_current: bool
    ) -> tuple[tuple[int, ...], object]:
        """Return what `take` does of new memory; in it lies the ticket unless there is one."""
        (memory,) = self._allocate(stream, is_current)
        begin = pointer_of(memory)
        if ticket is None and self._draws:
            _clear(begin, stream, self._gpu)
        return self._addresses(ticket or begin, begin), memory

    def _addresses(self, ticket: int, memory: int) -> tuple[int, ...]:
        return ticket, *[memory + PART_BYTES + begin for begin in self._begins]


def _kept(gpu: Gpu, stream: int, thread: int) -> int | None:
    """Return the address of the memory that a thread keeps for a stream; None without any."""
    own = gpu.index, stream, thread
    if own in _KEPT or len(_KEPT) >= _MOST:
        return _KEPT.get(own)
    try:
        memory = take_memory(PART_BYTES + KEPT_BYTES, gpu, stream)
    except OutOfMemory:  # torch may have some in reserve
        return None
    _clear(memory, stream, gpu)
    _KEPT[own] = memory
    return memory


def _clear(address: int, stream: int, gpu: Gpu) -> None:
    """Make memory at this address a ticket, in the stream's order."""
    with gpu.current():
        call_driver(driver().cuMemsetD32Async, address, 0, 1, stream)
