"""Named arrays of a checkpoint, whatever container they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, Self

import ml_dtypes
import numpy as np

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.resource import Resource

_WEIGHTS = tuple(
    np.dtype(each) for each in (np.float32, ml_dtypes.bfloat16, np.float16, np.float64)
)


class WeightReader(Protocol):
    """Arrays by Hugging Face name, in Hugging Face row order, read on demand.

    An array shares memory with the mapped file where the container stores it as it is, and is
    then read-only; permuted or dequantised arrays are made anew at every `read`. Arrays stay
    valid after `close`.
    """

    @property
    def names(self) -> frozenset[str]:
        """The names of all arrays."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without reading it."""
        ...

    def dtype(self, name: str) -> np.dtype:
        """The number format that `read` will return, without reading."""
        ...

    def file_of(self, name: str) -> str:
        """The path of the file that holds an array."""
        ...

    def read(self, name: str) -> np.ndarray:
        """The array; CheckpointError if there is none of this name."""
        ...

    def quantized(self, name: str) -> QuantizedEntry | None:
        """A weight that is stored quantised, not yet read; None of plain numbers."""
        ...

    def close(self) -> None:
        """Let go of the files; idempotent."""
        ...

    def __enter__(self) -> Self:
        """The reader itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close; the caller's exception stays."""
        ...


class Entry(Protocol):
    """One array of a container: what it will be, and how to get it."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype: ...  # noqa: D102
    def read(self) -> np.ndarray: ...  # noqa: D102


class EntryReader(Resource):
    """A WeightReader over a table of entries; the containers only build the table.

    `files` says where each entry lies, if not all in `source`.
    """

    def __init__(
        self, source: str, entries: Mapping[str, Entry], files: Mapping[str, Path] | None = None
    ) -> None:
        self._source = source
        self._entries = dict(entries)
        self._files = files or {}
        self._names = frozenset(entries)

    @property
    def names(self) -> frozenset[str]:
        """The names of all arrays."""
        return self._names

    def changed(self, change: Callable[[Mapping[str, Entry]], Mapping[str, Entry]]) -> EntryReader:
        """A reader over what `change` makes of the entries."""
        return EntryReader(self._source, change(self._entries), self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, without reading it."""
        return self._find(name).shape

    def dtype(self, name: str) -> np.dtype:
        """The number format that `read` will return, without reading."""
        return self._find(name).dtype

    def file_of(self, name: str) -> str:
        """The path of the file that holds an array."""
        return str(self._files.get(name, self._source))

    def read(self, name: str) -> np.ndarray:
        """The array; CheckpointError if there is none of this name."""
        entry = self._find(name)
        array = entry.read()
        assert array.shape == entry.shape
        assert array.dtype == entry.dtype
        return array

    def quantized(self, name: str) -> QuantizedEntry | None:
        """A weight that is stored quantised, not yet read; None of plain numbers."""
        entry = self._find(name)
        return entry if isinstance(entry, QuantizedEntry) else None

    def close(self) -> None:
        """Let go of the files; arrays that were read keep their own mapping alive."""
        self._entries.clear()

    def _find(self, name: str) -> Entry:
        if name not in self._names:
            raise CheckpointError(f"{self._source}: there is no tensor {name!r}")
        if name not in self._entries:
            raise CheckpointError(f"{self._source}: {name!r} was read after close()")
        return self._entries[name]


def check_dtypes(reader: WeightReader, names: Iterable[str]) -> None:
    """Refuse weights that are no plain floats; CheckpointError names the first with its file."""
    for name in names:
        if (dtype := reader.dtype(name)) not in _WEIGHTS:
            raise CheckpointError(
                f"{reader.file_of(name)}: tensor {name!r} holds {dtype}; weights are read in "
                f"{', '.join(map(str, _WEIGHTS))}; save the model again in one of these"
            )
