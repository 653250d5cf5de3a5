"""The container of GGUF: metadata by key, and tensors in place.

Facts of the format (all numbers little-endian): "GGUF", a version, the numbers of tensors and of
keys; keys with a type and a value; tensors with sizes (innermost first), a type and an offset; and,
aligned, the tensors themselves. A text is a length and UTF-8, a list its items' type, a length and
the items.

The gguf package's reader makes two arrays of every text. For a vocabulary of 150,000 tokens and
their merges it took ten times as long as this one and 270 MB, 60 of which stayed; here it is 3 MB.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.tensors.mapped import map_file

VERSIONS: Final = (2, 3)
MAX_DIMS: Final = 4
MAX_DIM: Final = 2**40  # larger ones only occur in damaged files
DEFAULT_ALIGNMENT: Final = 32

_NUMBERS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_UINT32, _TEXT, _LIST = 4, 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor: its sizes as numpy counts, and its bytes in the mapped file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Container:
    """The content of a file; `head` is all that lies before what is said of tensors."""

    values: Mapping[str, Any]
    tensors: Sequence[GgufTensor]
    head: NDArray[np.uint8]


NUM_TENSORS_AT: Final = 8  # in the head, eight bytes


class TextList(Sequence[str]):
    """Texts that stay in a mapped file, each made when it is read."""

    def __init__(self, data: memoryview, starts: Sequence[int]) -> None:
        """Take where the lengths of the texts lie."""
        self._data, self._starts = data, starts

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> TextList: ...
    def __getitem__(self, at: int | slice) -> str | TextList:
        """Make a text; of a slice, none."""
        if isinstance(at, slice):
            return TextList(self._data, self._starts[at])
        start = self._starts[at]
        (length,) = _LENGTH.unpack_from(self._data, start)
        return str(self._data[start + 8 : start + 8 + length], "utf-8")

    def __iter__(self) -> Iterator[str]:
        """Make one after the other."""
        data, length_at = self._data, _LENGTH.unpack_from
        for start in self._starts:
            begin = start + 8
            yield str(data[begin : begin + length_at(data, start)[0]], "utf-8")

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._starts)

    def __repr__(self) -> str:
        """Return the first few as a list."""
        return repr([*self[:8]])


_LENGTH = struct.Struct("<Q")


def open_container(path: Path) -> Container:
    """Read a file; CheckpointError for damage."""
    data = map_file(path)
    try:
        return _Reader(data).container()
    except _DAMAGE as broken:
        raise CheckpointError(f"{path} cannot be read as GGUF: {broken}") from broken


_DAMAGE = (ValueError, LookupError, OverflowError, RecursionError, MemoryError, struct.error)
"""What files raise that are none, or not whole."""


class _Reader:
    """A place in a file."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data, self._bytes, self._at = data, data.data, 0

    def container(self) -> Container:
        """Read all of the file but its tensors."""
        if bytes(self._take(4)) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self._number("I")) not in VERSIONS:
            raise ValueError(
                f"its version is {version}; read are 2 and 3, and numbers that are little-endian"
            )
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        values: dict[str, Any] = {}
        alignment = DEFAULT_ALIGNMENT
        for _ in range(num_keys):
            key, kind = self._text(), self._number("I")
            if key in values:
                raise ValueError(f"the key {key!r} is there twice")
            values[key] = self._value(kind)
            if key == "general.alignment":
                alignment = values[key]
                if kind != _UINT32 or not alignment or alignment & (alignment - 1):
                    raise ValueError(f"{key} is {alignment!r}; it must be a power of two")
        head = self._data[: self._at]
        described = [self._described() for _ in range(num_tensors)]
        start = -(-self._at // alignment) * alignment
        tensors = [self._tensor(each, start) for each in described]
        if len({each.name for each in tensors}) < num_tensors:
            raise ValueError("two tensors have the same name")
        return Container(values, tensors, head)

    def _take(self, num_bytes: int) -> memoryview:
        start, self._at = self._at, self._at + num_bytes
        if self._at > len(self._bytes):
            raise ValueError(
                f"it ends at byte {len(self._bytes):,}, in the middle of its metadata; it is "
                "truncated, download it again"
            )
        return self._bytes[start : self._at]

    def _number(self, code: str) -> Any:
        form = struct.Struct(f"<{code}")
        return form.unpack(self._take(form.size))[0]

    def _text(self) -> str:
        return str(self._take(self._number("Q")), "utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            return self._list(self._number("I"), self._number("Q"))
        return self._number(_code(kind))

    def _list(self, kind: int, length: int) -> Sequence[Any]:
        if kind == _TEXT:
            return TextList(self._bytes, self._starts(length))
        if kind == _LIST:
            return [self._value(kind) for _ in range(length)]
        code = _code(kind)
        taken = self._take(length * struct.calcsize(f"<{code}"))
        numbers: list[Any] = np.frombuffer(taken, np.dtype(code).newbyteorder("<")).tolist()
        return numbers

    def _starts(self, length: int) -> array[int]:
        """Pass over texts, all of them in UTF-8; return where each begins with its length.

        There are hundreds of thousands: taken one by one as other texts are, it took three times
        as long.
        """
        data, at, limit, starts = self._bytes, self._at, len(self._bytes), array("Q")
        length_at = _LENGTH.unpack_from
        for _ in range(length):
            starts.append(at)
            begin = at + 8
            at = begin + length_at(data, at)[0]
            if at > limit:
                break
            str(data[begin:at], "utf-8")
        self._at = starts[0] if starts else at
        self._take(at - self._at)
        return starts

    def _described(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, sizes, type and offset of a tensor."""
        name, num_dims = self._text(), self._number("I")
        if num_dims > MAX_DIMS:
            raise ValueError(
                f"tensor {name!r} has {num_dims} dimensions; at most {MAX_DIMS} can be"
            )
        sizes = tuple(self._number("Q") for _ in range(num_dims))
        return name, sizes, self._number("I"), self._number("Q")

    def _tensor(self, described: tuple[str, tuple[int, ...], int, int], start: int) -> GgufTensor:
        name, sizes, number, offset = described
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if sizes and sizes[0] % block:
            raise ValueError(f"tensor {name!r} has rows of {sizes[0]}, in blocks of {block}")
        begin, num_bytes = start + offset, prod(sizes) // block * block_bytes
        if (end := begin + num_bytes) > len(self._data):
            raise ValueError(
                f"tensor {name!r} ends at byte {end:,}, and the file has {len(self._data):,}; it "
                "is truncated, download it again"
            )
        if max(sizes, default=0) > MAX_DIM:  # of an empty one
            raise ValueError(f"tensor {name!r} has a dimension of {max(sizes):,}")
        return GgufTensor(name, kind, sizes[::-1], self._data[begin:end])


def _code(kind: int) -> str:
    """Return the code of a type of numbers."""
    if kind not in _NUMBERS:
        raise ValueError(f"a value has the type {kind}; known are 0 to 12")
    return _NUMBERS[kind]
