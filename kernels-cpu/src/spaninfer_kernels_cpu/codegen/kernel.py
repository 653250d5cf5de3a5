"""Kernels that scripts call: compiled once for a CPU, known by name to other processes.

A kernel has one signature, whatever it computes:

    def kernel(arguments: Struct, tokens: int, task: int) -> None

`arguments` is a struct of named fields (`arguments`), `tokens` the count that its call is cut by,
mostly the step's tokens, `task` the number of the task to do. It must not raise, and the order of
tasks must not matter.

It is a function of a module, or one of the `variants` that such a function makes of constants. So
another process can compile it knowing no more than names (`compilers`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from typing import Any, ParamSpec, TypeAlias, cast, get_type_hints

from numba import types

from spaninfer_kernels_cpu.codegen.arguments import Arguments, ArgumentsType
from spaninfer_kernels_cpu.codegen.compiled import NativeFunction
from spaninfer_kernels_cpu.codegen.constants import Constant

Kernel = Callable[[Any, int, int], None]
Name: TypeAlias = list[Any]
"""Module, name and, of a variant, what it was made of, as JSON can hold it."""

_PACKAGE = __name__.partition(".")[0]
_Made = ParamSpec("_Made")


def address_of(kernel: Kernel) -> int:
    """Return the address of a kernel's machine code, compiled or loaded; it is kept for good."""
    return native_of(kernel).make_ready()


def is_ready(kernel: Kernel) -> bool:
    """True if there is machine code in this process."""
    return native_of(kernel).address is not None


def is_on_disk(kernel: Kernel) -> bool:
    """Return True if the machine code of these sources for this CPU is in the cache."""
    return native_of(kernel).is_on_disk()


@cache
def native_of(kernel: Kernel) -> NativeFunction:
    """Return what compiles or loads a kernel, and holds its machine code then."""
    arguments = ArgumentsType(arguments_of(kernel))
    return NativeFunction(kernel, types.void(arguments, types.int64, types.int64))


@cache
def arguments_of(kernel: Kernel) -> type[Arguments]:
    """Return the struct that a kernel takes: what its first parameter is annotated with.

    TypeError where that is none.
    """
    first, *_ = signature(kernel).parameters
    declared = get_type_hints(kernel).get(first)
    if not (isinstance(declared, type) and issubclass(declared, Arguments)):
        raise TypeError(f"{kernel.__qualname__}: {first} is annotated with no struct of arguments")
    return declared


# ---- names ---------------------------------------------------------------------------------------

_VARIANTS: dict[Kernel, tuple[Callable[..., Kernel], tuple[Any, ...]]] = {}


def variants(make: Callable[_Made, Kernel]) -> Callable[_Made, Kernel]:
    """Return what makes each kernel of a family once, and notes of what: constants of ours."""

    @cache
    @wraps(make)
    def make_once(*arguments: Any) -> Kernel:
        kernel = make(*arguments)  # type: ignore[call-arg]
        _VARIANTS[kernel] = make, arguments
        return kernel

    return cast("Callable[_Made, Kernel]", make_once)


def name_of(kernel: Kernel) -> Name | None:
    """Return what `kernel_of` finds a kernel by in any process; None for one that is not ours."""
    function, arguments = _VARIANTS.get(kernel, (kernel, None))
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module.partition(".")[0] != _PACKAGE or not hasattr(sys.modules[module], name):
        return None
    return [module, name, None if arguments is None else [_written(one) for one in arguments]]


def kernel_of(name: Name) -> Kernel:
    """Return the kernel of a name."""
    module, function, arguments = name
    found = getattr(import_module(module), function)
    kernel: Kernel = found if arguments is None else found(*map(_read, arguments))
    return kernel


def _written(value: object) -> object:
    """Return a constant as [module, class, fields], a tuple as {"tuple": items}; what a field holds
    beside those is JSON's. TypeError for anything else: another process could not be sent it.
    """
    if isinstance(value, tuple):
        return {"tuple": [_written(each) for each in value]}
    if value is None or isinstance(value, str | int | float):
        return value
    if not isinstance(value, Constant):
        raise TypeError(f"{value!r} is no constant of a kernel: it has no name")
    kind: Any = type(value)
    return [kind.__module__, kind.__name__, _fields_of(value)]


def _fields_of(value: Any) -> Sequence[object]:
    return [_written(getattr(value, field.name)) for field in fields(value)]


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_read, value["tuple"]))
    if not isinstance(value, list):
        return value
    module, name, numbers = value
    kind = getattr(import_module(module), name)
    assert issubclass(kind, Constant), name
    return kind(*map(_read, numbers))
