"""Numba functions with one signature each, compiled or loaded from disk before they are needed.

Numba keeps machine code on disk per source file, CPU and signature. It looks at the file that
holds the function, not at files whose functions that one calls; so a digest of all our sources is
part of the names of its files. Then a process that began with other sources can neither load what
it should not, nor write over what others load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from numba import njit
from numba.core import caching

Function = TypeVar("Function", bound=Callable[..., Any])

_Cache: Any = caching.FunctionCache
_Files: Any = caching.IndexDataCacheFile


def entry(function: Function) -> Function:
    """Return a function that Python calls, without its lock, for `make_ready` to compile."""
    compiled: Function = njit(nogil=True, error_model="numpy", **_FOR_PYTHON)(function)
    return compiled


# Numba's annotations do not know this option.
_FOR_PYTHON: dict[str, Any] = {"no_cfunc_wrapper": True}


def make_ready(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile `dispatcher` for `signature`, or load it, and let it never compile again.

    Arguments of another layout are converted where that is safe (a contiguous array serves where
    the signature says strided); other types are a TypeError instead of seconds of compilation.
    """
    keep(dispatcher, dispatcher.py_func)
    dispatcher.compile(signature)
    dispatcher.disable_compile()


def keep(compiler: Any, function: Callable[..., Any]) -> None:
    """Let what Numba compiles of a function be loaded from disk, and written to it."""
    compiler._cache = _Kept(function)


class _Kept(_Cache):  # type: ignore[misc]
    """Numba's cache of a function, in files for these sources alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        discard_others(Path(self.cache_path))
        name = f"{self._impl.filename_base}.{digest_of_sources()}"
        self._cache_file = _Files(self.cache_path, name, source_stamp=None)


@cache
def discard_others(folder: Path) -> None:
    """Delete Numba's files in `folder` that were made from other sources."""
    for file in (*folder.glob("*.nbi"), *folder.glob("*.nbc")):
        if digest_of_sources() not in file.name:
            file.unlink(missing_ok=True)


@cache
def digest_of_sources() -> str:
    """Return what differs whenever a source of this package does."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
