"""How functions are compiled that only other compiled functions call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def in_kernel(function: Function) -> Function:
    """Return the function as others call it when they are compiled, not when Python runs.

    That is `njit` without entries for Python and C, which took a quarter of the time to compile
    attention.
    """
    compiled: Function = njit(error_model="numpy", **_WITHOUT_ENTRIES)(function)
    return compiled


# Numba's annotations do not know these options.
_WITHOUT_ENTRIES: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
