"""The weights of a model and of the modules of sentence-transformers behind it, as one reader."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import WeightReader
from spaninfer_engine.resource import Resource


class ModuleReader(Resource):
    """A WeightReader in which a module's tensors are called FOLDER/NAME; it owns its parts."""

    def __init__(self, model: WeightReader, modules: Mapping[str, WeightReader]) -> None:
        self._readers = {"": model, **{f"{folder}/": each for folder, each in modules.items()}}
        self._place = {
            prefix + name: (reader, name)
            for prefix, reader in self._readers.items()
            for name in reader.names
        }
        self._model = model

    @property
    def names(self) -> frozenset[str]:
        """The names of all arrays."""
        return frozenset(self._place)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array."""
        reader, inner = self._at(name)
        return reader.shape(inner)

    def dtype(self, name: str) -> np.dtype:
        """The number format of an array."""
        reader, inner = self._at(name)
        return reader.dtype(inner)

    def file_of(self, name: str) -> str:
        """The path of the file that holds an array."""
        reader, inner = self._at(name)
        return reader.file_of(inner)

    def read(self, name: str) -> np.ndarray:
        """The array; CheckpointError if there is none of this name."""
        reader, inner = self._at(name)
        return reader.read(inner)

    def quantized(self, name: str) -> QuantizedEntry | None:
        """A weight that is stored quantised, not yet read; None of plain numbers."""
        reader, inner = self._at(name)
        return reader.quantized(inner)

    def close(self) -> None:
        """Let go of the files; idempotent."""
        for reader in self._readers.values():
            reader.close()

    def _at(self, name: str) -> tuple[WeightReader, str]:
        return self._place.get(name, (self._model, name))
