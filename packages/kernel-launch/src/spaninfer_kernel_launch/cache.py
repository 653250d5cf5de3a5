"""Compiled kernels on disk, by the content that they were compiled from.

An entry is one file, SHA-256 of the rest first. Writers put whole files in place with one rename,
so that readers and other writers need no locks; an entry that was cut short or altered fails its
checksum and counts as absent.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_CHECKSUM_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class FileCache:
    """Byte strings in the files of one folder, which is made when the first one is kept."""

    folder: Path

    def find(self, key: str) -> bytes | None:
        """Return what was kept under `key`; None if nothing whole was."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        checksum, kept = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        return kept if hashlib.sha256(kept).digest() == checksum else None

    def keep(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`, in place of what was there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=f"{key[:8]}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            Path(name).replace(self._path(key))
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.bin"


def user_cache() -> FileCache:
    """Return the cache of compiled kernels in the user's own cache folder."""
    if sys.platform == "win32":
        base = Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return FileCache(base / "spaninfer" / "kernels")
