"""Files below one folder that the operator named; no link and no `..` leads out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spaninfer_multimodal.errors import Forbidden, TooLarge, Unreachable

_OPEN = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a named pipe would wait for its writer


def read_file(url: str, folder: Path, max_bytes: int) -> bytes:
    """Return the content of the file that a file: URL names, at most `max_bytes`.

    Links are followed while they stay below `folder`. Raises Forbidden for anything outside of it
    and for what is no existing regular file, Unreachable for what cannot be opened, TooLarge.
    """
    root, path = _resolved(folder), Path(_path_of(url))
    resolved = _resolved(path)
    if root is None or resolved is None or root not in resolved.parents:
        # one message for both, so that it does not reveal what exists elsewhere
        raise Forbidden(f"{str(path)!r} is not a file below the allowed folder")
    descriptor = _open_below(root, resolved.relative_to(root))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Forbidden(f"{str(path)!r} is no regular file")
        if found.st_size > max_bytes:
            raise TooLarge(f"the file has {found.st_size} bytes; at most {max_bytes} are accepted")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    finally:
        os.close(descriptor)


def _resolved(path: Path) -> Path | None:
    """Return an existing path without links and `..`, or None."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None


def _path_of(url: str) -> str:
    """Return the absolute path in a file: URL."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Forbidden(f"{url[:80]!r} is no file: URL") from error
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise Forbidden(f"a file: URL looks like file:///folder/name.png, not {url[:80]!r}")
    path = unquote(parts.path)
    if os.name == "nt":
        path = path.lstrip("/")
    if "\0" in path or not Path(path).is_absolute():
        raise Forbidden(f"{url[:80]!r} names no absolute path")
    return path


def _open_below(root: Path, relative: Path) -> int:
    """Open a resolved path step by step, so that no link put there meanwhile is followed."""
    try:
        if os.open not in os.supports_dir_fd:
            return os.open(root / relative, _OPEN | _NO_WAIT)
        folder = os.open(root, _OPEN | os.O_DIRECTORY)
        for name in relative.parts[:-1]:
            inner = _open_in(folder, name, os.O_DIRECTORY)
            folder = inner
        return _open_in(folder, relative.parts[-1], _NO_WAIT)
    except OSError as error:
        raise Unreachable(f"the file cannot be opened: {error.strerror}") from error


def _open_in(folder: int, name: str, flags: int) -> int:
    """Open one name in an open folder, without following links, and close the folder."""
    try:
        return os.open(name, _OPEN | _NO_LINK | flags, dir_fd=folder)
    finally:
        os.close(folder)
