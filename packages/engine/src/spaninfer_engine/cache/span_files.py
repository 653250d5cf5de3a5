"""Spans in files: one folder per model, one file per span, named by its hash.

A file is a header (magic, size, checksum) and the bytes of the span. The checksum is taken over the
name, too: a file under another span's name is damaged. A file is written under a temporary name and
renamed, so that half of one is never seen. What users have typed can be computed from spans, so
folder and files are their owner's alone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from struct import Struct
from time import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import ConfigError

_MAGIC = b"SPANKV1\n"
_HEADER = Struct("<8sQ16s")  # magic, size in bytes, checksum
_NAME = re.compile(r"(\d{1,3})-([0-9a-f]{64})\.span")
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}\.tmp")
_ABANDONED_S = 3600.0  # a span is written in much less

Bytes = NDArray[np.uint8]


class SpanKey(NamedTuple):
    """A cache group and the hash of one of its spans."""

    group: int
    span_hash: bytes

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.group}-{self.span_hash.hex()}.span"


class SpanFile(NamedTuple):
    """The size of a span's file, and when it was last used."""

    num_bytes: int
    used_s: float  # since the epoch


class DamagedSpan(Exception):
    """A file is not what its name says."""


@dataclass(frozen=True, slots=True)
class SpanFiles:
    """The files of one folder. Safe to use from one thread at a time.

    Raises OSError where the system does.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> SpanFiles:
        """Return the files of a folder, which is made; what a killed process left is removed.

        Raises ConfigError for a folder in which others may write: they could put spans there.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as reason:
            raise ConfigError(
                f"the folder {folder} for spans of the KV cache cannot be used: {reason.strerror}; "
                "name another with --kv-disk"
            ) from reason
        if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            raise ConfigError(
                f"the folder {folder} for spans of the KV cache is not yours, or others may write "
                "in it; name another with --kv-disk, or remove it"
            )
        for entry in os.scandir(folder):
            is_left = _TEMPORARY.fullmatch(entry.name) is not None
            if is_left and entry.stat().st_mtime < time() - _ABANDONED_S:
                Path(entry.path).unlink(missing_ok=True)
        return cls(folder)

    def listing(self) -> dict[SpanKey, SpanFile]:
        """Return the spans and their files, least recently used first.

        Files with other names are somebody else's, and left alone.
        """
        found: list[tuple[SpanKey, SpanFile]] = []
        for entry in os.scandir(self.folder):
            named = _NAME.fullmatch(entry.name)
            if named is not None:
                status = entry.stat(follow_symlinks=False)
                key = SpanKey(int(named[1]), bytes.fromhex(named[2]))
                found.append((key, SpanFile(status.st_size, status.st_mtime)))
        return dict(sorted(found, key=lambda one: (one[1].used_s, one[0])))

    def write(self, key: SpanKey, content: Bytes) -> int:
        """Write a span; return how many bytes its file takes."""
        temporary = self.folder / f".{key.span_hash.hex()}.{token_hex(8)}.tmp"
        header = _HEADER.pack(_MAGIC, len(content), _checksum(key, content))
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header)
                file.write(content.data)
            temporary.replace(self.folder / key.file_name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return len(header) + len(content)

    def read(self, key: SpanKey, into: Bytes) -> None:
        """Read a span into `into`, whose size is a span's, and note that it was used.

        Raises DamagedSpan for a file that is not this span's; it is removed.
        """
        path = self.folder / key.file_name
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            is_whole = file.readinto(into.data) == len(into) and not file.read(1)
        if not is_whole or header != _HEADER.pack(_MAGIC, len(into), _checksum(key, into)):
            path.unlink(missing_ok=True)
            raise DamagedSpan(f"{path} is damaged, and was removed")
        os.utime(path)

    def renew(self, key: SpanKey) -> None:
        """Note that a span was used."""
        os.utime(self.folder / key.file_name)

    def remove(self, key: SpanKey) -> None:
        """Remove a span, if it is there."""
        (self.folder / key.file_name).unlink(missing_ok=True)


def _checksum(key: SpanKey, content: Bytes) -> bytes:
    checksum = blake2b(key.file_name.encode(), digest_size=16)
    checksum.update(content.data)
    return checksum.digest()
