"""Safetensors files: an eight-byte length, a JSON header, then the arrays without gaps.

The header is checked here and not by the safetensors library, because that library has no numpy
form of bfloat16 and of the eight-bit floats, and because our messages name file and tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.json_file import parse_json
from spaninfer_engine.load.tensors.dtype import SAFETENSORS
from spaninfer_engine.load.tensors.mapped import MappedArray, map_file

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
# Brackets and commas of a header: 8 describe a matrix, and what a header takes to read is theirs.
# 1.4 million tensors without numbers, in 100 MB, took 33 s and 1.4 GB.
MAX_HEADER_MARKS = 1_000_000
MAX_DIMENSION = 2**40  # larger sizes only occur in damaged headers
DATA_ALIGNMENT = 64  # of files written here: the first array begins with a cache line

Described: TypeAlias = tuple[np.dtype, tuple[int, ...]]
"""Number format and shape of an array."""

_CODES = {dtype: code for code, dtype in SAFETENSORS.items()}


def read_safetensors(path: Path) -> dict[str, MappedArray]:
    """The arrays of one file by name; CheckpointError where the file contradicts itself."""
    data = map_file(path)
    header, data_start = _read_header(path, data)
    header.pop("__metadata__", None)
    body = data[data_start:]
    entries = {name: _read_entry(path, name, described, body) for name, described in header.items()}
    _check_coverage(path, entries, num_bytes=len(body))
    return entries


def read_metadata(path: Path) -> dict[str, str]:
    """The texts by name that one file carries beside its arrays; CheckpointError if damaged."""
    header, _ = _read_header(path, map_file(path))
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(x, str) for x in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ does not hold texts by name")
    return metadata


def write_safetensors(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a new file of C-contiguous arrays, in this order, and have the disk keep it.

    The format allows no gaps, so the order decides how arrays are aligned. OSError as `open` and
    `write` raise it.
    """
    described = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    write_streamed(path, described, arrays.values(), metadata)


def write_streamed(
    path: Path,
    described: Mapping[str, Described],
    arrays: Iterable[np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write a new file as `write_safetensors` does, each array when it is made."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    stop = 0
    for name, (dtype, shape) in described.items():
        start, stop = stop, stop + prod(shape) * dtype.itemsize
        numbers = {"dtype": _CODES[dtype], "shape": list(shape)}
        header[name] = numbers | {"data_offsets": [start, stop]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array, (dtype, shape) in zip(arrays, described.values(), strict=True):
            assert (array.dtype, array.shape) == (dtype, shape), path
            file.write(array.reshape(-1).view(np.uint8).data)  # bfloat16 has no buffer of its own
        file.flush()
        os.fsync(file.fileno())


def _read_header(path: Path, data: np.ndarray) -> tuple[dict[str, Any], int]:
    if len(data) < 8:
        raise CheckpointError(f"{path} has {len(data)} bytes; a safetensors file has at least 8")
    length = int(data[:8].view("<u8")[0])
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(
            f"{path}: the header claims {length} bytes, but {len(data) - 8} bytes follow; "
            "the file is truncated or no safetensors file"
        )
    text = data[8 : 8 + length].tobytes()
    if (marks := sum(map(text.count, (b"{", b"[", b",")))) > MAX_HEADER_MARKS:
        raise CheckpointError(
            f"{path}: the header has {marks:,} brackets and commas; allowed are "
            f"{MAX_HEADER_MARKS:,}, enough for 100,000 tensors; split the file into shards"
        )
    return parse_json(f"{path}: the header", text), 8 + length


def _read_entry(path: Path, name: str, described: Any, data: np.ndarray) -> MappedArray:
    try:
        code, shape, (start, stop) = (
            str(described["dtype"]),
            tuple(described["shape"]),
            described["data_offsets"],
        )
    except (KeyError, TypeError, ValueError) as broken:
        raise CheckpointError(
            f"{path}: tensor {name!r} needs dtype, shape and two data_offsets; got {described!r}"
        ) from broken
    if code not in SAFETENSORS:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {code}; known are {', '.join(SAFETENSORS)}"
        )
    if not all(isinstance(size, int) and 0 <= size < MAX_DIMENSION for size in shape):
        raise CheckpointError(f"{path}: tensor {name!r} has the impossible shape {list(shape)}")
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop):
        raise CheckpointError(f"{path}: tensor {name!r} has the offsets [{start}, {stop})")
    entry = MappedArray(data, start, shape, SAFETENSORS[code])
    if entry.num_bytes != stop - start:
        raise CheckpointError(
            f"{path}: tensor {name!r} of {code}{list(shape)} needs {entry.num_bytes} bytes, "
            f"but its offsets [{start}, {stop}) hold {stop - start}"
        )
    return entry


def _check_coverage(path: Path, entries: Mapping[str, MappedArray], num_bytes: int) -> None:
    """Arrays must follow each other without gap or overlap from the header to the end."""
    reached = 0
    in_order = sorted(entries.items(), key=lambda item: (item[1].start, item[1].num_bytes))
    for name, entry in in_order:
        if entry.start != reached:
            word = "overlaps the one before it" if entry.start < reached else "leaves a gap"
            raise CheckpointError(
                f"{path}: tensor {name!r} starts at byte {entry.start}, expected {reached}: {word}"
            )
        reached += entry.num_bytes
        if reached > num_bytes:
            raise CheckpointError(
                f"{path}: tensor {name!r} ends at byte {reached}, but the file holds {num_bytes} "
                "bytes of data; it is truncated, download it again"
            )
    if reached != num_bytes:
        raise CheckpointError(f"{path}: {num_bytes - reached} bytes at the end belong to no tensor")
