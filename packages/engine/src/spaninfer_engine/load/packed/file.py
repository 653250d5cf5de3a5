"""Packed weights in one safetensors file: arrays as a backend wants them, and where they are from.

The arrays' names are the backend's. The metadata say in what order numbers lie, what the arrays
are, and which tensors of a checkpoint they were made of, so that a spec can be checked as ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from spaninfer_op_reference import WeightFormat

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.containers.safetensors import (
    read_metadata,
    read_safetensors,
    write_safetensors,
)
from spaninfer_engine.load.packed.packing import Packing
from spaninfer_engine.load.tensors.dtype import SAFETENSORS
from spaninfer_engine.load.tensors.mapped import MappedArray
from spaninfer_engine.load.tensors.reader import WeightReader
from spaninfer_engine.resource import Resource

PACKED_FILE = "packed.safetensors"
TEXT_FILE = "vocab.gguf"  # tokenizer and template of the GGUF file that was packed
VERSION = "2"
AGAIN = "convert the original checkpoint again"


@dataclass(frozen=True, slots=True)
class Contents:
    """The header of a file of packed weights: its arrays.

    layout    names the order of numbers in packed arrays
    forms     by the name of a packed array, what its backend needs to know to read it
    tensors   by name, number format (as safetensors calls it) and shape of what was packed
    formats   by name, those of tensors that were stored as codes: they decide what is joined
    """

    layout: str
    packing: Packing
    forms: Mapping[str, Any]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    formats: Mapping[str, WeightFormat]


class PackedReader(Resource):
    """A load.tensors.reader.WeightReader that describes the tensors, and has what they became."""

    def __init__(self, path: Path, contents: Contents, arrays: Mapping[str, MappedArray]) -> None:
        self.path, self.contents = path, contents
        self.arrays = dict(arrays)

    @property
    def packing(self) -> Packing:
        """The format of the packed weights."""
        return self.contents.packing

    @property
    def names(self) -> frozenset[str]:
        """The names of the tensors that were packed."""
        return frozenset(self.contents.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a tensor had."""
        return self.contents.tensors[name][1]

    def dtype(self, name: str) -> np.dtype:
        """The number format that a tensor had."""
        return SAFETENSORS[self.contents.tensors[name][0]]

    def file_of(self, name: str) -> str:  # noqa: ARG002
        """The file of packed weights."""
        return str(self.path)

    def read(self, name: str) -> NoReturn:
        """CheckpointError: what was packed is gone."""
        raise CheckpointError(f"{self.path}: {name!r} was packed and cannot be read; {AGAIN}")

    def quantized(self, name: str) -> None:  # noqa: ARG002
        """None: what was packed is in the backend's form."""
        return None

    def close(self) -> None:
        """Let go of the file; arrays that were read keep their own mapping alive."""
        self.arrays.clear()


def describe_tensors(reader: WeightReader) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return number format and shape of every tensor of a checkpoint."""
    codes = {dtype: code for code, dtype in SAFETENSORS.items()}
    return {
        name: (codes[reader.dtype(name)], tuple(reader.shape(name)))
        for name in sorted(reader.names)
    }


def write_packed(path: Path, arrays: Mapping[str, np.ndarray], contents: Contents) -> None:
    """Write a new file; arrays lie in it in this order. OSError as writing raises it."""
    write_safetensors(
        path,
        arrays,
        {
            "spaninfer_packed": VERSION,
            "layout": contents.layout,
            "packing": json.dumps([contents.packing.quantize, contents.packing.group]),
            "forms": json.dumps(dict(contents.forms)),
            "tensors": json.dumps(dict(contents.tensors)),
            "formats": json.dumps(_by_format(contents.formats)),
        },
    )


def _by_format(formats: Mapping[str, WeightFormat]) -> list[tuple[dict[str, Any], list[str]]]:
    """Return every format once, with the names of its tensors."""
    names: dict[WeightFormat, list[str]] = {}
    for name, format in formats.items():
        names.setdefault(format, []).append(name)
    return [(asdict(format), each) for format, each in names.items()]


def _by_name(by_format: list[tuple[dict[str, Any], list[str]]]) -> dict[str, WeightFormat]:
    formats = dict[str, WeightFormat]()
    for fields, names in by_format:
        table = fields["table"]
        format = WeightFormat(**fields | {"table": None if table is None else tuple(table)})
        formats |= dict.fromkeys(names, format)
    return formats


def open_packed(path: Path) -> PackedReader:
    """Open a file of packed weights; CheckpointError if it is another version's, or damaged."""
    metadata = read_metadata(path)
    if metadata.get("spaninfer_packed") != VERSION:
        raise CheckpointError(
            f"{path} says spaninfer_packed {metadata.get('spaninfer_packed')!r}, and this version "
            f"reads {VERSION!r}; {AGAIN}"
        )
    try:
        quantize, group = json.loads(metadata["packing"])
        tensors = {
            str(name): (str(code), tuple(map(int, shape)))
            for name, (code, shape) in json.loads(metadata["tensors"]).items()
        }
        forms = dict(json.loads(metadata["forms"]))
        formats = _by_name(json.loads(metadata["formats"]))
        packing = Packing(quantize, group)
        contents = Contents(metadata["layout"], packing, forms, tensors, formats)
    except (ValueError, KeyError, TypeError, AttributeError) as broken:
        raise CheckpointError(f"{path}: the metadata are damaged: {broken!r}; {AGAIN}") from broken
    return PackedReader(path, contents, read_safetensors(path))
