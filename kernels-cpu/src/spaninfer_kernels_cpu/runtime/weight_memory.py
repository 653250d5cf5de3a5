"""Memory of packed weights: on pages of 2 MB, which weights share.

NumPy asks for such pages from 4 MB on, and many weights of a small model have less. One row of
Q4_0 by weights of 1.8 MB, from memory, two cores of a Zen 4 in a virtual machine: 28.1 GB/s on
pages of 4 KB, 32.0 on these, where a plain read gets 31 to 34.
"""

from __future__ import annotations

import math
import mmap
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.memory import whole_lines

HUGE_PAGE: Final = 2 << 20
BLOCK_BYTES: Final = 32 << 20  # requested from the system at a time, at least

Bytes = NDArray[np.uint8]


class WeightMemory:
    """Blocks of memory that arrays are cut from, one after the other.

    A block goes back to the system with the last of its arrays. What is left of it when the next
    array does not fit is never written, and so takes no memory.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._left: Bytes = np.empty(0, np.uint8)

    def take(self, shape: tuple[int, ...]) -> Bytes:
        """Return an array of bytes, all zero, that begins with a cache line."""
        num_bytes = math.prod(shape)
        with self._lock:
            if num_bytes > len(self._left):
                self._left = _block(num_bytes)
            array = self._left[:num_bytes].reshape(shape)
            self._left = self._left[whole_lines(num_bytes) :]
        return array


def _block(least_bytes: int) -> Bytes:
    """Return memory that begins with a page of 2 MB and holds that many bytes.

    It is the process's own: most systems (`shmem_enabled` is `never`) give shared memory, which
    `mmap` makes unless told otherwise, small pages alone.
    """
    size = -(-max(least_bytes, BLOCK_BYTES) // HUGE_PAGE) * HUGE_PAGE
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, size + HUGE_PAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    return whole[start : start + size]


_shared = WeightMemory()


def weight_memory(shape: tuple[int, ...]) -> Bytes:
    """Return zeroed bytes for a packed weight; the memory lives as long as the array."""
    return _shared.take(shape)
