"""A file as read-only memory that the operating system shares and pages in on demand."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path
from weakref import WeakSet

import numpy as np

from spaninfer_engine.errors import CheckpointError


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file, uint8 [size], mapped and not copied."""
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    except ValueError as empty:  # mmap refuses a length of zero
        raise CheckpointError(f"{path} is empty") from empty
    except OSError as broken:
        raise CheckpointError(f"{path} cannot be read: {broken}") from broken
    mapping = data.base
    assert isinstance(mapping, mmap.mmap)
    _mapped.add(mapping)
    return np.asarray(data)


_mapped: WeakSet[mmap.mmap] = WeakSet()  # as long as an array of theirs is in use


def release_pages() -> None:
    """Give the pages of all files that are mapped back to the system.

    What still reads them gets them again, from the page cache as a rule. Without it a process that
    has packed a file of 3.8 GB is shown with 8 GB (RSS) for as long as one small array is left.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for each in list(_mapped):
            each.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class MappedArray:
    """An array that lies in a mapped file as it is: bytes [start, start + size) of `data`."""

    data: np.ndarray
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the array in the file, in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The array in place; a copy only where the file leaves it at an odd address."""
        array = self.data[self.start : self.start + self.num_bytes].view(self.dtype)
        array = array.reshape(self.shape)
        return array if array.flags.aligned else array.copy()
