"""Kernel signatures: parameters declared in Python, checked against those of the CUDA source.

The arguments of a kernel are a NamedTuple whose fields have its parameters' names and types:

>>> class Fill(NamedTuple):
...     n: Int32
...     out: Pointer
...     slope: Float32
>>> fill = Signature("fill", Fill)
>>> fill.check('extern "C" __global__ void fill(int n, T* out, float slope) {')
>>> fill.check('extern "C" __global__ void fill(int n, T* out, int slope) {')
Traceback (most recent call last):
spaninfer_kernel_launch.errors.SignatureError: kernel fill, argument 3: the CUDA source has \
`int slope`, but Fill declares `slope: float32`

A tuple, because a launch makes one each time, and a frozen dataclass takes 2 µs to make.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache as once
from itertools import zip_longest
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, get_type_hints

from spaninfer_kernel_launch.errors import SignatureError

TENSOR_MAP_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class ParameterType:
    """The type of a kernel parameter: its name, its code in the struct module, its C++ names."""

    name: str
    code: str
    spellings: tuple[str, ...]

    def __str__(self) -> str:
        """Return the name, for messages."""
        return self.name


_POINTER: Final = ParameterType("pointer", "P", ())  # spelled with a star
_TYPES: Final = (
    ParameterType("int32", "i", ("int",)),
    ParameterType("uint32", "I", ("unsigned", "unsigned int")),
    ParameterType("int64", "q", ("long long",)),
    ParameterType("float32", "f", ("float",)),
    ParameterType("tensor map", f"{TENSOR_MAP_BYTES}s", ("TensorMap",)),
)
_INT32, _UINT32, _INT64, _FLOAT32, _TENSOR_MAP = _TYPES

Pointer: TypeAlias = Annotated[int, _POINTER]
Int32: TypeAlias = Annotated[int, _INT32]
UInt32: TypeAlias = Annotated[int, _UINT32]
Int64: TypeAlias = Annotated[int, _INT64]
Float32: TypeAlias = Annotated[float, _FLOAT32]
TensorMap: TypeAlias = Annotated[bytes, _TENSOR_MAP]
"""The result of `encode_tensor_map`."""


class Parameter(NamedTuple):
    """A parameter as Python declares it."""

    name: str
    type: ParameterType

    def __str__(self) -> str:
        """Return the declaration, for messages."""
        return f"{self.name}: {self.type}"


class NoArguments(NamedTuple):
    """The arguments of a kernel without parameters."""


ArgumentsT = TypeVar("ArgumentsT", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Signature(Generic[ArgumentsT]):
    """A `__global__` function: its name, and the NamedTuples that declare its parameters.

    `arguments` are those that every call gives; `constants`, the last ones, are given once per
    `Call`.
    """

    entry: str
    arguments: type[ArgumentsT]
    constants: type[tuple[Any, ...]] = NoArguments

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in the kernel's order."""
        return (*parameters_of(self.arguments), *parameters_of(self.constants))

    def check(self, source: str) -> None:
        """Raise SignatureError unless `source` declares this kernel with these parameters."""
        declared = _declared(self.entry, source)
        for number, (cuda, own) in enumerate(zip_longest(declared, self.parameters), 1):
            if cuda is None or own is None or not _agree(cuda, own):
                raise SignatureError(
                    f"kernel {self.entry}, argument {number}: the CUDA source has "
                    f"{_quoted(cuda)}, but {self._declarers} declares {_quoted(own)}"
                )

    @property
    def _declarers(self) -> str:
        named = (self.arguments, self.constants)
        return " + ".join(each.__name__ for each in named if each is not NoArguments) or "Python"


@once
def parameters_of(arguments: type[tuple[Any, ...]]) -> tuple[Parameter, ...]:
    """Return the fields of a NamedTuple as parameters. Raises SignatureError for other types."""
    hints = get_type_hints(arguments, include_extras=True)
    return tuple(Parameter(name, _annotated(arguments, name, hint)) for name, hint in hints.items())


def _annotated(arguments: type, name: str, hint: Any) -> ParameterType:
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, ParameterType):
            return each
    allowed = ", ".join(("Pointer", "Int32", "UInt32", "Int64", "Float32", "TensorMap"))
    raise SignatureError(f"{arguments.__name__}.{name} is {hint}; kernels take {allowed}")


_COMMENT = re.compile(r"//[^\n]*")
_DECLARATION = (
    r'extern "C" __global__ void\s+'
    r"(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?"
    r"{entry}\s*\((?P<parameters>[^()]*)\)"
)
_QUALIFIERS = re.compile(r"\b(?:const|__restrict__|__grid_constant__)\b")


def _declared(entry: str, source: str) -> list[str]:
    """Return the parameters of a kernel as the source spells them."""
    pattern = _DECLARATION.replace("{entry}", re.escape(entry))
    found = re.findall(pattern, _COMMENT.sub("", source))
    if len(found) != 1:
        raise SignatureError(
            f'kernel {entry} is declared {len(found)} times in its source as `extern "C" '
            "__global__ void`; exactly one is needed"
        )
    return [" ".join(each.split()) for each in found[0].split(",") if each.strip()]


def _agree(declared: str, own: Parameter) -> bool:
    type_text, name = _QUALIFIERS.sub("", declared), declared.rpartition(" ")[2].lstrip("*")
    if name != own.name:
        return False
    if "*" in type_text:
        return own.type is _POINTER
    spelled = " ".join(type_text.split()[:-1])
    return spelled in own.type.spellings


def _quoted(parameter: object) -> str:
    return "no such argument" if parameter is None else f"`{parameter}`"
