"""Named arguments of kernels: structs in memory, declared once as dataclasses.

    @dataclass(frozen=True, slots=True)
    class GateArguments(Arguments):
        x: Matrix
        out: Matrix
        channels: int
        scale: Float32

    def gate(arguments: GateArguments, tokens: int, task: int) -> None:
        row = arguments.x.address + task * arguments.x.stride

The declaration packs the arguments of a call (`packed`), is what Numba reads fields by inside the
kernel, each a load from memory, and what a call is checked against: a kernel takes the struct that
its first parameter is annotated with (`kernel.arguments_of`).

A field takes eight bytes: a whole number, a truth (`bool`), a `Float32`, or an `Indirect`. A field
that is a struct itself takes the bytes of its own fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeAlias, get_type_hints

from numba.core import types
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.vectors import intrinsic

Float32: TypeAlias = Annotated[Any, "float32"]
"""A field that kernels read as a float32."""

Indirect: TypeAlias = Annotated[int, "indirect"]
"""A field given as the address of an int64, of which kernels read what it holds then: the address
of an array that differs from step to step, or a number that does."""

WORD_BYTES = 8

Declared: TypeAlias = Any
"""A subclass of Arguments."""


class Arguments:
    """Base of the structs; one without fields is what a kernel without arguments takes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Field:
    """A field's kind (a struct, int, bool, Float32 or Indirect) and where it begins, in bytes."""

    kind: Any
    offset: int


@cache
def fields_of(declared: Declared) -> dict[str, _Field]:
    """Return the fields of a struct by name; TypeError for one of a kind that there is not."""
    hints = get_type_hints(declared, include_extras=True)
    found: dict[str, _Field] = {}
    offset = 0
    for field in fields(declared) if declared is not Arguments else ():
        kind = hints[field.name]
        found[field.name] = _Field(kind, offset)
        if _is_struct(kind):
            offset += struct_bytes(kind)
        elif kind in (int, bool, Float32, Indirect):
            offset += WORD_BYTES
        else:
            raise TypeError(f"{declared.__name__}.{field.name} is {kind}; see {__name__}")
    return found


@cache
def _paths(declared: Declared) -> tuple[tuple[str, str], ...]:
    """Return the path of every number from the struct on, and `struct.pack`'s letter for it."""
    return tuple(_walk(declared))


def _walk(declared: Declared) -> Iterator[tuple[str, str]]:
    for name, field in fields_of(declared).items():
        if _is_struct(field.kind):
            yield from ((f"{name}.{path}", letter) for path, letter in _paths(field.kind))
        else:
            yield name, "f4x" if field.kind == Float32 else "q"


@cache
def _packer(declared: Declared) -> tuple[Callable[[Any], tuple[Any, ...]], struct.Struct]:
    """Return what finds a struct's numbers, and what makes memory of them."""
    paths, letters = zip(*_paths(declared), strict=True) if _paths(declared) else ((), ())
    memory = struct.Struct("=" + "".join(letters))
    if len(paths) > 1:
        return attrgetter(*paths), memory
    return lambda arguments: tuple(attrgetter(path)(arguments) for path in paths), memory


def packed(arguments: Arguments) -> bytes:
    """Return the memory of a struct; TypeError for a field that holds another kind of number."""
    declared: Declared = type(arguments)
    find, memory = _packer(declared)
    values = find(arguments)
    try:
        return memory.pack(*values)
    except struct.error as wrong:
        names = (path for path, _ in _paths(declared))
        given = ", ".join(f"{name} = {value!r}" for name, value in zip(names, values, strict=True))
        raise TypeError(f"{declared.__name__}: {wrong}, of {given}") from wrong


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Arguments)


def struct_bytes(declared: Declared) -> int:
    """Return the bytes of a struct."""
    return WORD_BYTES * len(_paths(declared))


# ---- inside kernels ------------------------------------------------------------------------------


class ArgumentsType(types.Type):
    """The type of a struct's address in a kernel, whose attributes are the fields."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        super().__init__(name=f"{declared.__module__}.{declared.__qualname__}{_paths(declared)}")


@register_model(ArgumentsType)
class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: ArgumentsType) -> None:
        super().__init__(manager, kind, v.I64)  # type: ignore[no-untyped-call]


@infer_getattr
class _Fields(AttributeTemplate):
    key = ArgumentsType

    def generic_resolve(  # type: ignore[override]
        self, kind: ArgumentsType, name: str
    ) -> types.Type | None:
        field = fields_of(kind.declared).get(name)
        return None if field is None else _type_of(field.kind)


def _type_of(kind: Any) -> types.Type:
    if _is_struct(kind):
        return ArgumentsType(kind)
    if kind is bool:
        return types.boolean
    return types.float32 if kind == Float32 else types.int64


@lower_getattr_generic(ArgumentsType)  # type: ignore[no-untyped-call, untyped-decorator]
def _read_field(_context: Any, b: Any, kind: ArgumentsType, address: Any, name: str) -> Any:
    field = fields_of(kind.declared)[name]
    place = v.at(b, address, field.offset)
    read = _type_of(field.kind)
    if isinstance(read, ArgumentsType):
        return place
    if read == types.float32:
        return v.load(b, v.F32, place)
    number = v.load(b, v.I64, place)
    if field.kind == Indirect:
        return v.load(b, v.I64, number)
    return b.icmp_signed("!=", number, v.I64(0)) if read == types.boolean else number


def struct_at(declared: Declared) -> Any:
    """Return the intrinsic that takes an address and returns the struct which lies there."""
    kind = ArgumentsType(declared)

    @intrinsic
    def at(_context: Any, _address: Any) -> Any:
        """Return the struct at an address."""

        def emit(_context: Any, _b: Any, _signature: Any, arguments: Any) -> Any:
            return arguments[0]

        return kind(types.int64), emit

    return at
