"""What the host has to tell a GPU's memory before the next step: words, and where they go."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import inputs
from torch import Tensor

Words = NDArray[np.int32]

SEGMENT = 8192  # words that one block of threads copies
_FEWEST = 1 << 14  # words of a buffer; grows to the longest prompts


class News:
    """Collects words for addresses, and sends all of them with one copy and one launch.

    Words lie in pinned memory while they travel, in one of two buffers in turn: what was sent two
    steps ago has arrived.
    """

    def __init__(self, kernels: inputs.Prepared, device: torch.device) -> None:
        self._kernels, self._device = kernels, device
        self._segments: list[tuple[int, Words]] = []
        self._pinned = [_pinned(_FEWEST), _pinned(_FEWEST)]
        self._arrived = self._on_device(_FEWEST)

    def add(self, address: int, words: Words) -> None:
        """Have words lie at an address before the next step; they must not change until then."""
        for begin in range(0, len(words), SEGMENT):
            self._segments.append((address + 4 * begin, words[begin : begin + SEGMENT]))

    def send(self, stream: int) -> None:
        """Send everything on torch's current stream, whose handle is `stream`.

        One buffer: addresses [S] int64 | begins [S + 1] | words.
        """
        if not self._segments:
            return
        segments, self._segments = self._segments, []
        count = len(segments)
        ends = np.cumsum([0] + [len(words) for _, words in segments])
        head = 3 * count + 1
        self._pinned.reverse()
        self._make_room(head + int(ends[-1]))
        pinned = self._pinned[0]
        block = pinned.numpy()
        block[: 2 * count].view(np.int64)[:] = [address for address, _ in segments]
        block[2 * count : head] = ends
        np.concatenate([words for _, words in segments], out=block[head : head + ends[-1]])
        used = head + int(ends[-1])
        self._arrived[:used].copy_(pinned[:used], non_blocking=True)
        base = self._arrived.data_ptr()
        self._kernels.write(
            *(base, base + 8 * count, base + 4 * head), segments=count, stream=stream
        )

    def _make_room(self, words: int) -> None:
        """Grow the buffers; torch keeps the memory of the old ones until they are read."""
        if len(self._pinned[0]) < words:
            self._pinned[0] = _pinned(1 << (words - 1).bit_length())
        if len(self._arrived) < words:
            self._arrived = self._on_device(len(self._pinned[0]))

    def _on_device(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, device=self._device)


def _pinned(words: int) -> Tensor:
    return torch.empty(words, dtype=torch.int32, pin_memory=True)
