"""The system's page cache: whether files are read from memory or from the disk."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryDirectory


def can_drop(folder: Path) -> bool:
    """Return True if files of a folder can be read from the disk, and it can be shown on one.

    On Linux alone: others lack the call. File systems in memory (tmpfs) have no disk.
    """
    if sys.platform != "linux":
        return False
    with TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "file"
        path.write_bytes(bytes(1 << 16))
        drop([path])
        return is_dropped(path)


def drop(paths: Iterable[Path]) -> None:
    """Have files read from the disk next time, where `can_drop`."""
    for path in paths:
        with path.open("r+b") as file:
            os.fsync(file)  # pages that are not written yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_dropped(path: Path) -> bool:
    """Return True if memory holds nothing of a file's beginning."""
    with path.open("r+b") as file, mmap(file.fileno(), 1) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        state = ctypes.c_ubyte(1)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = ctypes.CDLL(None).mincore(address, 1, ctypes.byref(state))
        del first  # a mapping that is referred to cannot be closed
    return not failed and not state.value & 1


def warm(paths: Iterable[Path]) -> None:
    """Have files read from memory next time."""
    for path in paths:
        path.read_bytes()
