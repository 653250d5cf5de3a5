"""One quantised module of a checkpoint: the tensors that lie under its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, ScaleType, WeightFormat

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

Array = NDArray[Any]

SCALE_TYPES: Mapping[np.dtype, ScaleType] = {
    np.dtype(np.float32): "float32",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(np.float16): "float16",
    np.dtype(ml_dtypes.float8_e4m3fn): "e4m3",
    np.dtype(ml_dtypes.float8_e8m0fnu): "e8m0",
    np.dtype(np.uint8): "e8m0",
}
"""What scales are stored in; bytes are exponents of two."""


@dataclass(frozen=True, slots=True)
class Module:
    """The tensors of a module by the rest of their names, and what `expand` rounds to.

    `settings` is what the config says about quantisation.
    """

    source: str
    name: str
    tensors: Mapping[str, Any]  # of load.tensors.reader.Entry, which knows of this package
    dtype: np.dtype
    settings: Mapping[str, Any]

    def __contains__(self, suffix: str) -> bool:
        """Return True if there is such a tensor."""
        return suffix in self.tensors

    def shape(self, suffix: str) -> tuple[int, ...]:
        """The shape of a tensor; CheckpointError where it is missing."""
        return tuple(self._find(suffix).shape)

    def matrix(self, suffix: str) -> tuple[int, int]:
        """The shape of a tensor of two axes; CheckpointError for others."""
        shape = self.shape(suffix)
        if len(shape) != 2:
            raise self.error(f"{suffix} is {list(shape)}; a quantised matrix has two axes")
        return shape[0], shape[1]

    def type(self, suffix: str) -> np.dtype:
        """The number format of a tensor; CheckpointError where it is missing."""
        dtype: np.dtype = self._find(suffix).dtype
        return dtype

    def read(self, suffix: str) -> Array:
        """A tensor; CheckpointError where it is missing."""
        array: Array = self._find(suffix).read()
        return array

    def demand(self, suffix: str, shape: tuple[int, ...]) -> None:
        """Raise CheckpointError unless a tensor has this shape."""
        if self.shape(suffix) != shape:
            raise self.error(
                f"{suffix} is {list(self.shape(suffix))}, expected {list(shape)} beside "
                + ", ".join(f"{name} {list(each.shape)}" for name, each in self.tensors.items())
            )

    def scale_type(self, suffix: str) -> ScaleType:
        """The number format of scales; CheckpointError for one that scales do not have."""
        dtype = self.type(suffix)
        if dtype not in SCALE_TYPES:
            raise self.error(f"{suffix} holds {dtype}; scales are {_listed(SCALE_TYPES)}")
        return SCALE_TYPES[dtype]

    def scales(self, suffix: str) -> Array:
        """Scales as floats; bytes are exponents of two."""
        array = self.read(suffix)
        if array.dtype == np.uint8:
            return np.ldexp(np.float32(1), array.astype(np.int32) - 127)
        return array.astype(np.float32)

    def entry(
        self,
        format: WeightFormat,
        shape: tuple[int, ...],
        load: Callable[[], QuantizedWeight],
    ) -> QuantizedEntry:
        """The weight of the module in a format."""
        stored = sum(prod(each.shape) * each.dtype.itemsize for each in self.tensors.values())
        return QuantizedEntry(format, shape, self.dtype, stored, load)

    def error(self, problem: str) -> CheckpointError:
        """Return an error that names the module."""
        return CheckpointError(f"{self.source}: quantised module {self.name!r}: {problem}")

    def _find(self, suffix: str) -> Any:
        if suffix not in self.tensors:
            raise self.error(f"{suffix} is missing; it has {', '.join(sorted(self.tensors))}")
        return self.tensors[suffix]


def group_len(module: Module, columns: int, groups: int, said: object) -> int | None:
    """Return how many columns share a scale, None for all; CheckpointError where groups differ.

    `said` is what the config says, which counts where groups do not divide the columns.
    """
    if groups == 1:
        return None
    length = columns // groups if columns % groups == 0 else said
    if not isinstance(length, int) or length < 1 or -(-columns // length) != groups:
        raise module.error(f"{groups} groups of {columns} columns, with group_size {said!r}")
    return length


def _listed(types: Mapping[np.dtype, ScaleType]) -> str:
    return ", ".join(dict.fromkeys(map(str, types)))
