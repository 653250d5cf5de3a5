"""Numba functions with one signature each, compiled or loaded from disk before they are needed.

Numba keeps machine code on disk per source file, CPU and signature. It looks at the file that
holds the function, not at files whose functions that one calls; so a digest of all our sources is
part of the names of its files. Then a process that began with other sources can neither load what
it should not, nor write over what others load.

Its own files list what there is of a function in an index, which is read, changed and written back:
of two processes that compile variants of one function at once, one would be told the other's code.
Here every variant is one file, whose name says what it was compiled for; it is written under
another name and renamed, so it is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit
from numba.core import caching
from numba.core.registry import cpu_target

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.inline_function import KernelCompiler
from spaninfer_kernels_cpu.codegen.typing_cache import typing_cached

Function = TypeVar("Function", bound=Callable[..., Any])

_Cache: Any = caching.FunctionCache
_Files: Any = caching.IndexDataCacheFile


def entry(function: Function) -> Function:
    """Return a function that Python calls, without its lock, for `make_ready` to compile."""
    compiled: Function = njit(nogil=True, error_model="numpy", **_OURS)(function)
    return compiled


# Numba's annotations do not know these options.
_OURS: dict[str, Any] = {"no_cfunc_wrapper": True, "pipeline_class": KernelCompiler}


def make_ready(dispatcher: Any, signature: tuple[Any, ...]) -> None:
    """Compile `dispatcher` for `signature`, or load it, and let it never compile again.

    Arguments of another layout are converted where that is safe (a contiguous array serves where
    the signature says strided); other types are a TypeError instead of seconds of compilation.
    """
    keep(dispatcher, dispatcher.py_func)
    with typing_cached():
        dispatcher.compile(signature)
    dispatcher.disable_compile()


def keep(compiler: Any, function: Callable[..., Any]) -> None:
    """Let what Numba compiles of a function be loaded from disk, and written to it."""
    _name_apart(function)
    compiler._cache = _Kept(function)


def is_kept(compiler: Any, signature: Any) -> bool:
    """Is there machine code on disk of a function that `keep` was called for?"""
    has: bool = compiler._cache.has(signature)
    return has


def _name_apart(function: Callable[..., Any]) -> None:
    """Have the name of a function say which constants it was made of.

    Numba numbers functions of one name in the order in which a process compiles them, and so names
    their machine code. Two variants from two processes, the first of either, would be loaded under
    one name, and nothing promises which of them that is then.
    """
    held = repr(_constants_of(function))
    mark = f".{hashlib.sha256(held.encode()).hexdigest()[:12]}"
    if function.__closure__ and not function.__qualname__.endswith(mark):
        function.__qualname__ += mark


def _constants_of(function: Callable[..., Any]) -> list[Constant]:
    """Return what the closure of a function holds."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    assert all(isinstance(value, Constant) for value in values), (function, values)
    return values


class _Kept(_Cache):  # type: ignore[misc]
    """Numba's cache of a function, in files for these sources alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        discard_others(Path(self.cache_path))
        name = f"{self._impl.filename_base}.{digest_of_sources()}"
        self._cache_file = _FilePerKey(self.cache_path, name, source_stamp=None)

    def has(self, signature: Any) -> bool:
        """Is there a file for this signature and CPU?"""
        key = self._index_key(signature, cpu_target.target_context.codegen())
        return self._cache_file.path_of(key).exists()

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        """Return what the code is for: signature, CPU, and what a closure holds.

        Numba pickles that, and equal constants may differ so: where they share a string or do not.
        """
        signature, machine, (code, _) = super()._index_key(signature, codegen)
        return signature, machine, code, repr(_constants_of(self._py_func))


class _FilePerKey(_Files):  # type: ignore[misc]
    """The files of a function: one for every key."""

    def path_of(self, key: tuple[Any, ...]) -> Path:
        """Return where the code for a key is, if it is kept."""
        return Path(self._data_path(self._name_of(key)))

    def load(self, key: tuple[Any, ...]) -> Any:
        """Return what is kept for a key; None if nothing is."""
        try:
            return self._load_data(self._name_of(key))
        except FileNotFoundError:
            return None

    def save(self, key: tuple[Any, ...], data: Any) -> None:
        """Keep data for a key."""
        self._save_data(self._name_of(key), data)

    def _name_of(self, key: tuple[Any, ...]) -> str:
        text = repr((numba.__version__, *key))
        number = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
        name: str = self._data_name(number)
        return name


@cache
def discard_others(folder: Path) -> None:
    """Delete Numba's files in `folder` that were made from other sources."""
    for file in folder.glob("*.nb[ci]"):
        if digest_of_sources() not in file.name:
            file.unlink(missing_ok=True)


@cache
def digest_of_sources() -> str:
    """Return what differs whenever a source of this package does."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
