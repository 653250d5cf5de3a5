"""Compiled kernels on disk, by the content that they were compiled from.

An entry is one file, SHA-256 of the rest first. Writers put whole files in place with one rename,
so that readers and other writers need no locks; an entry that was cut short or altered fails its
checksum and counts as absent. What is made while a key is `locked` is made once.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

try:
    import fcntl
except ImportError:  # Windows: processes that start at once may compile the same kernel
    fcntl = None  # type: ignore[assignment]

_CHECKSUM_BYTES = hashlib.sha256().digest_size

LOCK_S: Final = 120.0
"""How long a process waits for another that compiles the same kernel, which takes up to 20 s; one
that is stopped meanwhile does not keep others from starting."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class FileCache:
    """A cache of byte strings in the files of a folder, which is created with the first one.

    Where it cannot be written (read-only, disk full, none), `spare` is used: a folder below which
    only this user may write, since its content will be executed.
    """

    folder: Path | None
    spare: Path | None = None

    def find(self, key: str) -> bytes | None:
        """Return the intact entry of `key`, or None."""
        candidates = (self.folder, self.spare if _is_private(self.spare) else None)
        found = (_read(folder / _name(key)) for folder in candidates if folder is not None)
        return next((kept for kept in found if kept is not None), None)

    def keep(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`, replacing an earlier entry.

        Warns, the first time, if only the spare folder can be written, or neither.
        """
        reasons = []
        for folder in (self.folder, self.spare):
            if folder is None:
                continue
            try:
                if folder == self.spare:
                    _make_private(folder)
                _write(folder, _name(key), content)
            except OSError as reason:
                reasons.append(f"{folder}: {reason.strerror or reason}")
            else:
                if folder != self.folder:
                    _warn(f"kept in {folder}, which may be emptied at any time", *reasons)
                return
        _warn("kept in memory, and every start compiles them again", *reasons)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keep other threads and processes from making the same entry: they wait here, and find it.

        Where no folder takes a lock, or another holds it for too long, it is made twice.
        """
        opened = self._lock_file(self.folder, key) or self._lock_file(self.spare, key)
        try:
            if opened is not None:
                _lock(opened[1])
            yield
        finally:
            if opened is not None:
                path, file = opened
                with suppress(OSError):
                    path.unlink(missing_ok=True)  # who waits for it looks for the entry next
                os.close(file)

    def _lock_file(self, folder: Path | None, key: str) -> tuple[Path, int] | None:
        """Return a file to lock in a folder, opened; None where it takes none."""
        if folder is None or fcntl is None:
            return None
        try:
            if folder == self.spare:
                _make_private(folder)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{key}.lock"
            return path, os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None


def user_cache() -> FileCache:
    """Return the cache of compiled kernels in the user's own cache folder.

    The spare folder is below the temporary one.
    """
    kernels = Path("spaninfer", "kernels")
    base, temporary = _users_folder(), _temporary_folder()
    return FileCache(base and base / kernels, temporary and temporary / "kernels")


# ---- which folders -------------------------------------------------------------------------------


def _users_folder() -> Path | None:
    """Return the user's cache folder; None for a user without a home."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    usual = {"win32": "AppData/Local", "darwin": "Library/Caches"}
    return home / usual.get(sys.platform, ".cache")


def _temporary_folder() -> Path | None:
    """Return the folder for this user below the temporary one; None where there is none."""
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    try:
        return Path(tempfile.gettempdir(), f"spaninfer{user}")
    except OSError:
        return None


def _make_private(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(f"others may write to {folder.parent}")


def _is_private(folder: Path | None) -> bool:
    """Return True if a folder is below one of this user's that others may not write to."""
    if folder is None or folder.parent.is_symlink() or not folder.parent.is_dir():
        return False
    status = folder.parent.stat()
    return not hasattr(os, "getuid") or (status.st_uid, status.st_mode & 0o022) == (os.getuid(), 0)


# ---- files ---------------------------------------------------------------------------------------


def _name(key: str) -> str:
    return f"{key}.bin"


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read, or is not intact."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, kept = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return kept if hashlib.sha256(kept).digest() == checksum else None


def _lock(file: int) -> None:
    """Wait until nobody else has locked a file, but not longer than `LOCK_S`."""
    until = monotonic() + LOCK_S
    while monotonic() < until:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            sleep(POLL_S)
        except OSError:  # a file system without locks
            return


def _write(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name[:8]}.{uuid4().hex}.part"
    try:
        # Not by mkstemp, whose files other users cannot read: an image is filled by another user.
        with part.open("xb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        part.replace(folder / name)
    except OSError:
        part.unlink(missing_ok=True)
        raise


@once
def _warn(outcome: str, *reasons: str) -> None:
    """Warn once of each outcome, not for each kernel."""
    refused = "; ".join(reasons) or "there is no home folder"
    warnings.warn(
        f"no cache folder takes compiled kernels ({refused}), so they are {outcome}; "
        "set XDG_CACHE_HOME to a folder that can be written",
        RuntimeWarning,
        stacklevel=3,
    )
