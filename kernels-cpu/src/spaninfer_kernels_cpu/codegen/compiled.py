"""Native functions: Numba functions with one C signature, compiled or loaded from disk when needed.

Numba's own cache looks at the file that holds the function, not at files whose functions that one
calls, and stores pickles. Here a digest of all our sources is part of the names of files, so a
process that began with other sources can neither load what it should not, nor write over what
others load; and a file holds object code alone (`object_code`).

Every variant is a file of its own, whose name says what it was compiled for. Processes that compile
variants of one function at once need not agree on an index; one that lacks what another compiles
waits for it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

import numba
from numba import types
from numba.core import ccallback
from numba.core.registry import cpu_target

from spaninfer_kernels_cpu.codegen import object_code
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.inline_function import KernelCompiler
from spaninfer_kernels_cpu.codegen.kernel_cache import (
    LOCK_SUFFIX,
    CacheReport,
    KernelCache,
    kernel_cache,
)
from spaninfer_kernels_cpu.codegen.typing_cache import typing_cached

Function = TypeVar("Function", bound=Callable[..., Any])

SUFFIX = ".kernel"
TIMES_SUFFIX = ".times"  # of candidates that were tuned (`gemm.tuned`)

YOUNG: Final = 10_000
"""Objects that must have come before Python's collector looks at them while a kernel is compiled:
with its own 700 it took a tenth of the time of a first start (EPYC Zen 4, 2026-11-30)."""

_OPTIONS = {"error_model": "numpy"}
_CFunc: Any = ccallback.CFunc  # `cfunc` is the same, with a cache that is not ours


class NativeFunction:
    """A function's machine code for one signature; `address` is None until `make_ready`."""

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self.address: int | None = None
        self.was_loaded = False
        self._files = cache_of_these_sources()
        self._name = _file_name(function, signature)
        written = signature.args, signature.return_type
        self._compiler = _CFunc(function, written, {}, _OPTIONS, pipeline_class=KernelCompiler)

    def is_on_disk(self) -> bool:
        """Return True if there is a file of it."""
        return self._files.has(self._name)

    def make_ready(self) -> int:
        """Return the address of the machine code, loaded or compiled; it is kept for good."""
        if self.address is None:
            with typing_cached():  # one thread at a time
                if self.address is None:
                    self.address = self._load() or self._compile_once()
        return self.address

    def _compile_once(self) -> int:
        """Compile it, or load what another process has compiled meanwhile."""
        with self._files.locked(self._name):
            return self._load() or self._compile()

    def _load(self) -> int | None:
        content = self._files.read(self._name)
        found = None if content is None else object_code.from_bytes(self._name, content)
        if found is None:
            return None
        self.was_loaded = True
        return object_code.link(*found)

    def _compile(self) -> int:
        compiler = self._compiler
        with _rare_collections():
            compiler.compile()
        library = compiler._library
        assert not library.has_dynamic_globals, (compiler, "would not hold elsewhere")
        code = library._get_compiled_object()
        content = object_code.to_bytes(self._name, compiler.native_name, code)
        self._files.write(self._name, content)
        address: int = compiler.address
        return address


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage less often inside of the block: Numba leaves much, and keeps more."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, YOUNG) if young else 0, *older)  # 0: never
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


class _Entry:
    """A native function of whole numbers that Python calls, without its lock."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *numbers: int) -> Any:
        return self.call(*numbers)

    @cached_property
    def call(self) -> Any:
        """The machine code behind ctypes; the first use compiles or loads it."""
        hints = get_type_hints(self._function)
        result, foreign = _RESULTS[hints.pop("return")]
        signature = result(*(types.int64,) * len(hints))
        address = NativeFunction(self._function, signature).make_ready()
        return ctypes.CFUNCTYPE(foreign, *(ctypes.c_int64,) * len(hints))(address)


_RESULTS: dict[Any, tuple[Any, Any]] = {
    int: (types.int64, ctypes.c_int64),
    bool: (types.boolean, ctypes.c_bool),
    type(None): (types.void, None),
}


def entry(function: Function) -> Function:
    """Return what Python calls in place of a function that takes `int`s, compiled.

    It returns int, bool or None, as annotated. Other arguments are a ctypes.ArgumentError.
    """
    return cast(Function, _Entry(function))


def make_ready(*entries: Any) -> None:
    """Compile functions that `entry` returned, or load them."""
    for one in entries:
        _ = one.call


# ---- files ---------------------------------------------------------------------------------------


def _file_name(function: Callable[..., Any], signature: Any) -> str:
    """Return a name that says what the code is of and for: the CPU, and what a closure holds."""
    code = hashlib.sha256(function.__code__.co_code).hexdigest()
    machine = cpu_target.target_context.codegen().magic_tuple()
    key = (numba.__version__, signature, machine, code, _constants_of(function))
    number = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    module, line = Path(function.__code__.co_filename).stem, function.__code__.co_firstlineno
    name = f"{module}.{function.__qualname__}-{line}"
    python = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    plain = name.replace("<", "").replace(">", "")  # Windows has no files with such names
    return f"{plain}.{python}.{digest_of_sources()}.{number}{SUFFIX}"


def _constants_of(function: Callable[..., Any]) -> list[Constant]:
    """Return what the closure of a function holds."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    assert all(isinstance(value, Constant) for value in values), (function, values)
    return values


def kernel_cache_report() -> CacheReport:
    """Return where compiled kernels are kept, and what keeps them out of other folders."""
    return cache_of_these_sources().report()


def cache_of_these_sources() -> KernelCache:
    """Return the cache on disk, which loses what is of other sources before it takes new files."""
    return kernel_cache(discard_others)


def discard_others(folder: Path) -> None:
    """Delete files in `folder` that were made from other sources, where that is allowed."""
    for file in folder.iterdir():
        if (
            file.suffix in (SUFFIX, TIMES_SUFFIX, LOCK_SUFFIX)
            and digest_of_sources() not in file.name
        ):
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
