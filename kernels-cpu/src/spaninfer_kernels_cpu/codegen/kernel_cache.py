"""The cache of compiled kernels: files in the first folder that takes them.

The folders are below that of NUMBA_CACHE_DIR, or else below `__pycache__` beside the sources and
the user's own cache, as with Numba. Where none of them can be written (a read-only container, a
full disk), one below the temporary folder serves, and without that only this process's memory.

What a file holds will be run, so folders and files count only if this user or root owns them and
nobody else may write to them. Whether this process may write does not matter: a cache may be warmed
first, by root as well, and mounted read-only.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from uuid import uuid4

from numba.core import config
from numba.misc import appdirs

try:
    import fcntl
except ImportError:  # Windows: processes that start at once may compile the same kernel
    fcntl = None  # type: ignore[assignment]

VARIABLE: Final = "NUMBA_CACHE_DIR"
LOCK_SUFFIX: Final = ".lock"
LOCK_S: Final = 60.0
"""How long a process waits for another that compiles the same kernel, which takes 1 to 9 s; one
that is stopped meanwhile does not keep others from starting."""
POLL_S: Final = 0.02

_numba: Any = config  # its names are made when it is imported
_AppDirs: Any = appdirs.AppDirs
_SOURCES: Final = Path(__file__).parents[1]

Tidy = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The state of a cache: the folder that takes files, None for memory alone, and whether it
    lasts; the bytes of what is there; the folders that take no files, and why.
    """

    folder: Path | None
    is_lasting: bool
    num_bytes: int
    refused: Mapping[Path, str]


class KernelCache:
    """Files by name, in several folders: those that last, and a `temporary` one.

    `tidy` is called with a folder before the first file is written to it.
    """

    def __init__(self, lasting: tuple[Path, ...], temporary: Path | None, tidy: Tidy) -> None:
        self._lasting = lasting
        self._folders = lasting if temporary is None else (*lasting, temporary)
        self._tidy = cache(tidy)
        self._refused: dict[Path, OSError] = {}  # folders that took no file, and why
        self._has_warned = False

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None where no folder has one that may be read."""
        for folder in filter(is_private, self._folders):
            with suppress(OSError), (folder / name).open("rb") as file:
                if _is_trusted(os.fstat(file.fileno())):
                    return file.read()
        return None

    def has(self, name: str) -> bool:
        """Return True if there is such a file and it can be read."""
        folders = filter(is_private, self._folders)
        return any(os.access(folder / name, os.R_OK) for folder in folders)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all. Warns, once, where it will not last."""
        while (folder := self.writable()) is not None:
            try:
                _write(folder / name, content)
                break
            except OSError as reason:
                self._refused[folder] = reason
        if folder not in self._lasting and not self._has_warned:
            self._has_warned = True
            warnings.warn(self._sentence(folder), RuntimeWarning, stacklevel=2)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes from making the same file: they wait here, and find it then.

        Where no folder takes a lock, or another holds it for too long, it is made twice.
        """
        folder = None if fcntl is None else self.writable()
        try:
            path = None if folder is None else folder / f"{name}{LOCK_SUFFIX}"
            file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError:
            path = file = None
        try:
            if file is not None:
                _lock(file)
            yield
        finally:
            if path is not None and file is not None:
                with suppress(OSError):
                    path.unlink(missing_ok=True)  # who waits for it looks for the kernel next
                os.close(file)

    def writable(self) -> Path | None:
        """Return the first folder that takes files; None where none does."""
        for folder in self._folders:
            if folder in self._refused:
                continue
            try:
                self._make(folder)
                return folder
            except OSError as reason:
                self._refused[folder] = reason
        return None

    def report(self) -> CacheReport:
        """Return the state of the cache, after trying which folder takes a file."""
        folder = self.writable()
        return CacheReport(
            folder,
            folder in self._lasting,
            sum(map(_num_bytes, filter(is_private, self._folders))),
            {place: reason.strerror or str(reason) for place, reason in self._refused.items()},
        )

    def _make(self, folder: Path) -> None:
        """Make a folder if need be. OSError where no file can be made in it that may be read."""
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not is_private(folder):
            raise PermissionError("another user owns it or may write to it")
        _write(folder / "probe", b"").unlink(missing_ok=True)  # another process may probe as well
        self._tidy(folder)

    def _sentence(self, folder: Path | None) -> str:
        refused = "; ".join(
            f"{place}: {reason.strerror or reason}" for place, reason in self._refused.items()
        )
        kept = (
            "so they are kept in memory, and every start compiles them again"
            if folder is None
            else f"so they are kept in {folder}, which may be emptied at any time"
        )
        return (
            f"no cache folder takes compiled kernels ({refused or 'there is no home folder'}), "
            f"{kept}; set {VARIABLE} to a folder that can be written"
        )


def _num_bytes(folder: Path) -> int:
    """Return the bytes of a folder's files, without those that another process is deleting."""
    total = 0
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                total += file.lstat().st_size
    return total


def _lock(file: int) -> None:
    """Wait until no other process has locked a file, but not longer than `LOCK_S`."""
    until = monotonic() + LOCK_S
    while monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            sleep(POLL_S)
        except OSError:  # a file system without locks
            return


def _write(path: Path, content: bytes) -> Path:
    """Write a file under another name and rename it, so that no reader sees a part of it."""
    part = path.with_name(f"{path.name}.{uuid4().hex[:16]}.part")
    try:
        with open(part, "xb", opener=_writable_by_us) as file:
            file.write(content)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return path


def _writable_by_us(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


def is_private(folder: Path) -> bool:
    """Return True for a folder (no link) of this user or root that nobody else may write to."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_trusted(found)


def _is_trusted(found: os.stat_result) -> bool:
    """Return True if only this user or root may have written this. What it holds will be run."""
    if not hasattr(os, "getuid"):  # Windows: rights are inherited from folders of the user's own
        return True
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022


# ---- which folders -------------------------------------------------------------------------------


def kernel_cache(tidy: Tidy) -> KernelCache:
    """Return the cache that Numba's setting names at the moment."""
    return _cache_of(_numba.CACHE_DIR, tidy)


@cache
def _cache_of(chosen: str, tidy: Tidy) -> KernelCache:
    return KernelCache(tuple(_lasting(chosen)), _temporary(), tidy)


def _lasting(chosen: str) -> Iterator[Path]:
    if chosen:
        yield Path(chosen).absolute() / _subfolder()
        return
    yield _SOURCES / "__pycache__" / "kernels"
    users = Path(_AppDirs("numba", appauthor=False).user_cache_dir)
    if users.is_absolute():  # else the user has no home, and this begins with "~"
        yield users / _subfolder()


def _temporary() -> Path | None:
    """Return what is to be this user's and this package's temporary folder; None without any."""
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    try:
        return Path(tempfile.gettempdir()) / f"spaninfer{user}" / _subfolder()
    except OSError:
        return None


def _subfolder() -> str:
    """Return a name that no other copy of this package uses, whose files this one would delete."""
    place = hashlib.sha256(str(_SOURCES.absolute()).encode()).hexdigest()[:40]
    return f"{_SOURCES.name}_{place}"
