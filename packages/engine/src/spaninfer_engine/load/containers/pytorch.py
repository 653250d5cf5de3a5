"""PyTorch's files (pytorch_model.bin): a zip archive of a pickle and uncompressed storages.

The pickle says what lies where and is not executed (pickle_tensors.py); the arrays are read where
they lie in the mapped file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.containers.pickle_tensors import MAX_BYTES, PickledTensor, read_pickle
from spaninfer_engine.load.tensors.mapped import MappedArray, map_file
from spaninfer_engine.load.tensors.reader import Entry

_LOCAL_HEADER_BYTES = 30
_AGAIN = "save the model again with a current PyTorch, or as safetensors"


@dataclass(frozen=True, slots=True)
class StridedArray:
    """An array in a mapped file whose numbers are `strides` apart; read as a copy."""

    data: np.ndarray
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    def read(self) -> np.ndarray:
        """A copy in the order of its axes."""
        size = self.dtype.itemsize
        reach = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        numbers = self.data[self.start : self.start + reach * size].view(self.dtype)
        steps = tuple(size * step for step in self.strides)
        return np.lib.stride_tricks.as_strided(numbers, self.shape, steps, writeable=False).copy()


def read_pytorch(path: Path) -> dict[str, Entry]:
    """The arrays of one file by name; CheckpointError where it is damaged or holds more."""
    data = map_file(path)
    members = _members(path)
    folder, program = _program(path, members, data)
    described = read_pickle(f"{path}: {folder}data.pkl", program.tobytes())
    order = members.get(f"{folder}byteorder")
    if order is not None and _bytes(path, order, data).tobytes() != b"little":
        raise CheckpointError(f"{path}: its numbers are not little-endian; {_AGAIN}")
    return {
        name: _entry(
            path, name, tensor, _member(path, members, f"{folder}data/{tensor.storage}"), data
        )
        for name, tensor in described.items()
    }


def _members(path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """The files of an archive by name; CheckpointError where it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {member.filename: member for member in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as broken:
        raise CheckpointError(
            f"{path} is not a zip archive, the format of PyTorch since 1.6, or it is "
            f"truncated: {broken}; {_AGAIN}"
        ) from broken


def _program(
    path: Path, members: Mapping[str, zipfile.ZipInfo], data: np.ndarray
) -> tuple[str, np.ndarray]:
    """The folder of the archive that holds everything, and the bytes of its pickle."""
    found = [name for name in members if name.rpartition("/")[2] == "data.pkl"]
    if len(found) != 1:
        raise CheckpointError(f"{path} holds {len(found)} files data.pkl, expected one; {_AGAIN}")
    if members[found[0]].file_size > MAX_BYTES:
        raise CheckpointError(f"{path}: data.pkl is larger than {MAX_BYTES:,} bytes")
    return found[0].removesuffix("data.pkl"), _bytes(path, members[found[0]], data)


def _member(path: Path, members: Mapping[str, zipfile.ZipInfo], name: str) -> zipfile.ZipInfo:
    if name not in members:
        raise CheckpointError(f"{path} has no {name}, which a tensor lies in; download it again")
    return members[name]


def _bytes(path: Path, member: zipfile.ZipInfo, data: np.ndarray) -> np.ndarray:
    """The bytes of a file of the archive, in the mapped file."""
    start = member.header_offset
    header = data[start : start + _LOCAL_HEADER_BYTES]
    if member.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"{path}: {member.filename} is compressed; {_AGAIN}")
    if len(header) < _LOCAL_HEADER_BYTES or header[:4].tobytes() != b"PK\x03\x04":
        raise CheckpointError(f"{path}: {member.filename} is not where the archive says")
    name_len, extra_len = header[26:30].view("<u2").tolist()
    start += _LOCAL_HEADER_BYTES + name_len + extra_len
    if start + member.file_size > len(data):
        raise CheckpointError(f"{path} ends within {member.filename}; download it again")
    return data[start : start + member.file_size]


def _entry(
    path: Path, name: str, tensor: PickledTensor, member: zipfile.ZipInfo, data: np.ndarray
) -> Entry:
    storage, size = _bytes(path, member, data), tensor.dtype.itemsize
    pairs = list(zip(tensor.shape, tensor.strides, strict=True))
    is_empty = 0 in tensor.shape
    reach = 0 if is_empty else 1 + sum((n - 1) * step for n, step in pairs)
    if (tensor.start + reach) * size > len(storage) or prod(tensor.shape) * size > len(storage):
        raise CheckpointError(
            f"{path}: tensor {name!r} of {tensor.dtype}{list(tensor.shape)} reaches beyond the "
            f"{len(storage)} bytes of {member.filename}"
        )
    start = tensor.start * size
    if is_empty or _is_contiguous(pairs):
        return MappedArray(storage, start, tensor.shape, tensor.dtype)
    return StridedArray(storage, start, tensor.shape, tensor.strides, tensor.dtype)


def _is_contiguous(pairs: list[tuple[int, int]]) -> bool:
    """Return True if each axis steps over exactly what the axes after it span."""
    expected = 1
    for n, step in reversed(pairs):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True
