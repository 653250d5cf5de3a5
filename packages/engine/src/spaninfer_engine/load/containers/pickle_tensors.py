"""The tensors that a PyTorch pickle describes, without executing it.

A pickle is a program for a stack machine, which may name any function of Python and have it called.
Here the operations are parsed (`pickletools.genops` builds no objects) and those few are followed
that describe dictionaries of tensors. Names of functions are compared with a list and never looked
up; anything else ends with an error that says what it was.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from spaninfer_engine.errors import CheckpointError, shown

MAX_BYTES = 100_000_000  # of the program; tensors lie beside it. As many as a safetensors header
TENSORS = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter")
CONTAINERS = ("collections OrderedDict", "torch Size")
STORAGES: Mapping[str, np.dtype] = {
    f"torch {name}Storage": np.dtype(dtype)
    for name, dtype in (
        *(("Float", "<f4"), ("Double", "<f8"), ("Half", "<f2"), ("BFloat16", ml_dtypes.bfloat16)),
        *(("Char", "i1"), ("Byte", "u1"), ("Short", "<i2"), ("Int", "<i4"), ("Long", "<i8")),
        ("Bool", "?"),
    )
}


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor's location: numbers from `start` of a storage, which is a file of the archive."""

    storage: str
    dtype: np.dtype
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that a pickle names: one of the lists above."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: np.dtype


class _Mark:
    """The beginning of items on the stack."""


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8".split()
)
_MADE: Mapping[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_INERT = ("PROTO", "FRAME")


class _Refused(Exception):
    """The program does something that describing tensors does not need."""


def read_pickle(source: str, program: bytes) -> dict[str, PickledTensor]:
    """Return the tensors that a pickle describes, by name; CheckpointError names what is refused.

    A dictionary of names and tensors, or one that holds it as state_dict.
    """
    if len(program) > MAX_BYTES:
        raise CheckpointError(
            f"{source} has {len(program):,} bytes; at most {MAX_BYTES:,} are read"
        )
    try:
        described = _Machine().run(program)
    except _Refused as refused:
        raise CheckpointError(
            f"{source} does more than describe tensors: {refused}; it is not executed; save the "
            "model again as safetensors, if you trust it"
        ) from refused
    except (ValueError, LookupError, TypeError, OverflowError, AttributeError) as broken:
        raise CheckpointError(f"{source} is damaged: {shown(broken)}") from broken
    return _named(source, described)


def _named(source: str, described: Any) -> dict[str, PickledTensor]:
    if isinstance(described, dict) and isinstance(described.get("state_dict"), dict):
        described = described["state_dict"]
    if not isinstance(described, dict):
        raise CheckpointError(
            f"{source} holds {type(described).__name__}, expected names and tensors"
        )
    for name, tensor in described.items():
        if not isinstance(tensor, PickledTensor):
            raise CheckpointError(f"{source}: {name!r} is {type(tensor).__name__}, not a tensor")
    return described


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, program: bytes) -> Any:
        """Return what the program leaves on the stack."""
        for opcode, argument, _ in pickletools.genops(program):
            if opcode.name == "STOP":
                return self._pop()
            self._follow(opcode.name, argument)
        raise ValueError("it has no end")

    def _follow(self, name: str, argument: Any) -> None:
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _MADE:
            self._stack.append(_MADE[name]())
        elif name in _TUPLES:
            items = [self._pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        elif name in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name not in _INERT:
            self._do(name, argument)

    def _do(self, name: str, argument: Any) -> None:
        """Follow an operation that is no plain value."""
        match name:
            case "MARK":
                self._stack.append(_MARK)
            case "TUPLE":
                self._stack.append(tuple(self._items()))
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "APPEND":
                self._extend([self._pop()])
            case "APPENDS":
                self._extend(self._items())
            case "SETITEM":
                value = self._pop()
                self._set([self._pop(), value])
            case "SETITEMS":
                self._set(self._items())
            case "GLOBAL":
                self._stack.append(_allowed(argument))
            case "STACK_GLOBAL":
                attribute, module = self._pop(), self._pop()
                self._stack.append(_allowed(f"{module} {attribute}"))
            case "REDUCE":
                arguments = self._pop()
                self._stack.append(_call(self._pop(), arguments))
            case "BUILD":  # attributes of the dictionary: versions of modules
                self._pop()
                _expect(self._stack[-1], dict)
            case "BINPERSID":
                self._stack.append(_storage(self._pop()))
            case _:
                raise _Refused(f"operation {name}")

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("items without a beginning")
        return value

    def _items(self) -> list[Any]:
        """Take the items behind the last mark."""
        items: list[Any] = []
        while (value := self._stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def _extend(self, items: list[Any]) -> None:
        _expect(self._stack[-1], list).extend(items)

    def _set(self, items: list[Any]) -> None:
        into = _expect(self._stack[-1], dict)
        if len(items) % 2:
            raise ValueError("a name without a value")
        for name, value in zip(items[::2], items[1::2], strict=True):
            into[_expect(name, str)] = value


def _allowed(name: str) -> _Name:
    if name not in (*TENSORS, *CONTAINERS, *STORAGES):
        raise _Refused(f"it names {shown(name.replace(' ', '.', 1))}")
    return _Name(name)


def _call(function: Any, arguments: Any) -> Any:
    """Return what one of the listed functions would: described, not made."""
    match _expect(function, _Name).name, _expect(arguments, tuple):
        case "collections OrderedDict", ():
            return {}
        case "torch Size", (tuple() | list() as sizes,):
            return tuple(sizes)
        case "torch._utils _rebuild_tensor_v2", (_Storage() as storage, start, shape, strides, *_):
            return _tensor(storage, start, shape, strides)
        case "torch._utils _rebuild_parameter", (PickledTensor() as tensor, *_):
            return tensor
        case name, _:
            raise _Refused(
                f"it calls {name.replace(' ', '.', 1)} with other arguments than tensors'"
            )


def _tensor(storage: _Storage, start: Any, shape: Any, strides: Any) -> PickledTensor:
    numbers = start, *_expect(shape, tuple), *_expect(strides, tuple)
    if len(shape) != len(strides) or any(_expect(each, int) < 0 for each in numbers):
        raise ValueError(f"a tensor of shape {shape} and strides {strides} from {start}")
    return PickledTensor(storage.key, storage.dtype, start, shape, strides)


def _storage(said: Any) -> _Storage:
    match said:
        case ("storage", _Name(name), str() as key, *_) if name in STORAGES:
            return _Storage(key, STORAGES[name])
    raise _Refused(f"it refers to {shown(said)}")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{type(value).__name__} where {kind.__name__} belongs")
    return value
