"""Device functions: those that other compiled functions call, and Python does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from numba.core import types
from numba.core.typing.templates import infer_global

from spaninfer_kernels_cpu.codegen.inline_function import InlineCompiler, InlineFunction

_infer_global: Any = infer_global
Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS: Final[dict[str, Any]] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

INLINE: Final[Any] = {**_OPTIONS, "pipeline_class": InlineCompiler}
"""What makes parts of the functions that an `overload` returns: its `jit_options`."""


def device_function(function: Function) -> Function:
    """Return the function as others call it when they are compiled, never when Python runs."""
    return cast(Function, InlineFunction(function, **_OPTIONS))


def device_function_with(*, fastmath: set[str]) -> Callable[[Function], Function]:
    """Return `device_function` for functions whose arithmetic LLVM may change so."""

    def decorate(function: Function) -> Function:
        return cast(Function, InlineFunction(function, fastmath=fastmath, **_OPTIONS))

    return decorate


def host_device_function(function: Function) -> Function:
    """Return the function as it is written, for Python; compiled functions may call it too."""
    part = InlineFunction(function, **_OPTIONS)
    _infer_global(function, types.Dispatcher(part))
    _KEPT.append(part)
    return function


_KEPT: list[Any] = []  # types of functions do not keep what they name
