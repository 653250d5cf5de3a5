"""Functions whose code is chosen, while they are compiled, by the constant they are called with."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

from numba.extending import overload

from spaninfer_kernels_cpu.codegen.device_function import INLINE

Function = TypeVar("Function", bound=Callable[..., Any])


def specialized(choose: Callable[[Any], Callable[..., Any]]) -> Callable[[Function], Function]:
    """Decorate a declaration: compiled code calls `choose(constant)` instead.

    The constant is the first argument (`constants`). What is chosen has the declaration's
    parameters, names included.
    """

    def decorate(declared: Function) -> Function:
        names = list(signature(declared).parameters)

        def typed(kind: Any, *_: Any) -> Callable[..., Any]:
            chosen = choose(kind.value)
            assert list(signature(chosen).parameters) == names, (declared, chosen)
            typed.__signature__ = signature(chosen)  # type: ignore[attr-defined]
            return chosen

        # Numba asks for one signature to the letter, annotations included: that of what is chosen.
        overload(declared, jit_options=INLINE)(typed)
        return declared

    return decorate
