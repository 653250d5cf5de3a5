"""Numba functions with one signature each, compiled or loaded from disk before they are needed.

Numba's own cache keeps machine code per source file, CPU and signature. It looks at the file that
holds the function, not at files whose functions that one calls; here a digest of all our sources is
part of the names of files. Then a process that began with other sources can neither load what it
should not, nor write over what others load.

Numba lists what there is of a function in an index, which is read, changed and written back: of two
processes that compile variants of one function at once, one would be told the other's code. Here
every variant is one file, whose name says what it was compiled for. And where Numba finds no folder
to write to it raises, and reads none; `kernel_cache` does better.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit
from numba.core import compiler, serialize
from numba.core.registry import cpu_target

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.inline_function import KernelCompiler
from spaninfer_kernels_cpu.codegen.kernel_cache import KernelCache, kernel_cache
from spaninfer_kernels_cpu.codegen.typing_cache import typing_cached

Function = TypeVar("Function", bound=Callable[..., Any])

_Result: Any = compiler.CompileResult
_dumps: Any = serialize.dumps


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


class _Kept:
    """What Numba asks for the machine code of a function, and gives it to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._files = cache_of_these_sources()
        self._function = function

    @property
    def cache_path(self) -> str:
        """The folder that takes new files; empty where none does."""
        return str(self._files.writable() or "")

    def has(self, signature: Any) -> bool:
        """Is there a file for this signature and CPU?"""
        return self._files.has(self._name_of(signature))

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the code for a signature; None where no file has it, or only a part of it."""
        context.refresh()
        content = self._files.read(self._name_of(signature))
        if content is None:
            return None
        try:
            reduced = pickle.loads(content)
        except (EOFError, pickle.UnpicklingError):  # a machine that lost power may cut files short
            return None
        return _Result._rebuild(context, *reduced)

    def save_overload(self, signature: Any, result: Any) -> None:
        """Write the code for a signature."""
        assert not result.library.has_dynamic_globals, (self._function, "would not hold elsewhere")
        self._files.write(self._name_of(signature), _dumps(result._reduce()))

    def _name_of(self, signature: Any) -> str:
        """Return a name that says what the code is of and for: the CPU, and what a closure holds.

        Pickled, equal constants may differ: where they share a string or do not.
        """
        function = self._function
        code = hashlib.sha256(function.__code__.co_code).hexdigest()
        machine = cpu_target.target_context.codegen().magic_tuple()
        key = (numba.__version__, signature, machine, code, _constants_of(function))
        number = int(hashlib.sha256(repr(key).encode()).hexdigest()[:16], 16)
        module, line = Path(function.__code__.co_filename).stem, function.__code__.co_firstlineno
        name = f"{module}.{function.__qualname__}-{line}"
        python = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        plain = name.replace("<", "").replace(">", "")  # Windows has no files with such names
        return f"{plain}.{python}.{digest_of_sources()}.{number}.nbc"


def cache_of_these_sources() -> KernelCache:
    """Return the cache on disk, which loses what is of other sources before it takes new files."""
    return kernel_cache(discard_others)


def discard_others(folder: Path) -> None:
    """Delete files in `folder` that were compiled from other sources, where that is allowed."""
    for file in folder.glob("*.nb[ci]"):
        if digest_of_sources() not in file.name:
            with suppress(OSError):
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
