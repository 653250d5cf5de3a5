"""Writes to a GPU's memory that are due before the next step, collected in pinned memory."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda.inputs import Segments

Words = NDArray[np.int32]

SEGMENT = 512  # words that one block of threads copies, in 4 rounds of a load
_FEWEST = 1 << 14  # words of a buffer; grows to the longest prompts


class PendingWrites:
    """Collects words for addresses, which one kernel reads from here.

    Words are collected in pinned memory, in one of two buffers in turn: what was taken two steps
    ago has been read. A buffer: words | addresses [S] int64 | begins [S + 1].
    """

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._begins = [0]  # of each segment's words, and behind the last one
        self._pinned = [_pinned(_FEWEST), _pinned(_FEWEST)]
        self._blocks = [pinned.numpy() for pinned in self._pinned]

    def add(self, address: int, words: Words) -> None:
        """Queue words for an address, to be written before the next step."""
        first = self._begins[-1]
        last = first + len(words)
        self._make_room(last)
        self._blocks[0][first:last] = words
        for begin in range(first, last, SEGMENT):
            self._addresses.append(address + 4 * (begin - first))
            self._begins.append(min(begin + SEGMENT, last))

    def take(self) -> Segments:
        """Return where everything lies that was collected since the last step."""
        count, words = len(self._addresses), self._begins[-1]
        head = words + words % 2  # addresses are multiples of 8
        begins = head + 2 * count
        self._make_room(begins + count + 1)
        block, base = self._blocks[0], self._pinned[0].data_ptr()
        block[head:begins].view(np.int64)[:] = self._addresses
        block[begins : begins + count + 1] = self._begins
        self.forget()
        self._pinned.reverse()
        self._blocks.reverse()
        return Segments(count, base + 4 * head, base + 4 * begins, base)

    def forget(self) -> None:
        """Drop everything that is queued."""
        self._addresses, self._begins = [], [0]

    def _make_room(self, words: int) -> None:
        """Grow the buffer; the GPU has read the old one."""
        if len(self._blocks[0]) < words:
            self._pinned[0] = _pinned(1 << (words - 1).bit_length())
            block = self._pinned[0].numpy()
            block[: len(self._blocks[0])] = self._blocks[0]
            self._blocks[0] = block


def _pinned(words: int) -> torch.Tensor:
    return torch.empty(words, dtype=torch.int32, pin_memory=True)
