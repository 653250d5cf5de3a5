"""Writes to a GPU's memory that are due before the next step, sent with one copy and one launch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import inputs
from torch import Tensor

Words = NDArray[np.int32]

SEGMENT = 512  # words that one block of threads copies, in 4 rounds of a load
_FEWEST = 1 << 14  # words of a buffer; grows to the longest prompts


class PendingWrites:
    """Collects words for addresses, and sends all of them with one copy and one launch.

    Words are collected in pinned memory, in one of two buffers in turn: what was sent two steps ago
    has arrived. A buffer: words | addresses [S] int64 | begins [S + 1].
    """

    def __init__(self, kernels: inputs.PreparedInputs, device: torch.device) -> None:
        self._kernels, self._device = kernels, device
        self._addresses: list[int] = []
        self._begins = [0]  # of each segment's words, and behind the last one
        self._pinned = [_pinned(_FEWEST), _pinned(_FEWEST)]
        self._blocks = [pinned.numpy() for pinned in self._pinned]
        self._arrived = self._on_device(_FEWEST)

    def add(self, address: int, words: Words) -> None:
        """Queue words for an address, to be written before the next step."""
        first = self._begins[-1]
        last = first + len(words)
        self._make_room(last)
        self._blocks[0][first:last] = words
        for begin in range(first, last, SEGMENT):
            self._addresses.append(address + 4 * (begin - first))
            self._begins.append(min(begin + SEGMENT, last))

    def send(self, stream: int) -> None:
        """Send everything on torch's current stream, whose handle is `stream`."""
        count, words = len(self._addresses), self._begins[-1]
        if not count:
            return
        head = words + words % 2  # addresses are multiples of 8
        begins = head + 2 * count
        used = begins + count + 1
        self._make_room(used)
        block = self._blocks[0]
        block[head:begins].view(np.int64)[:] = self._addresses
        block[begins:used] = self._begins
        if len(self._arrived) < used:
            self._arrived = self._on_device(len(block))
        self._arrived[:used].copy_(self._pinned[0][:used], non_blocking=True)
        base = self._arrived.data_ptr()
        self._kernels.write(base + 4 * head, base + 4 * begins, base, segments=count, stream=stream)
        self.forget()
        self._pinned.reverse()
        self._blocks.reverse()

    def forget(self) -> None:
        """Drop everything that is queued."""
        self._addresses, self._begins = [], [0]

    def _make_room(self, words: int) -> None:
        """Grow the buffer; torch keeps the memory of the old one until it is read."""
        if len(self._blocks[0]) < words:
            self._pinned[0] = _pinned(1 << (words - 1).bit_length())
            block = self._pinned[0].numpy()
            block[: len(self._blocks[0])] = self._blocks[0]
            self._blocks[0] = block

    def _on_device(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, device=self._device)


def _pinned(words: int) -> Tensor:
    return torch.empty(words, dtype=torch.int32, pin_memory=True)
