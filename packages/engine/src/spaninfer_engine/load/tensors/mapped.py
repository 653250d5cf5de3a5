"""A file as read-only memory that the operating system shares and pages in on demand."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from spaninfer_engine.errors import CheckpointError


def map_file(path: Path) -> np.ndarray:
    """The bytes of a file, uint8 [size], mapped and not copied."""
    try:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
    except ValueError as empty:  # mmap refuses a length of zero
        raise CheckpointError(f"{path} is empty") from empty
    except OSError as broken:
        raise CheckpointError(f"{path} cannot be read: {broken}") from broken
    return np.asarray(mapped)


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
