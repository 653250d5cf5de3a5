"""An operation: one operator applied to named values, with its weights.

Operations are data: they can be printed, compared and matched. A weight's *use* is separate from
the tensor: a tied table is used by the embedding and by the head, and a backend may pack the two
differently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import normalize_rows, relative_position_buckets

from spaninfer_engine.dummy_array import DummyArray
from spaninfer_engine.ops.scoring import RaggedScoring, Scoring
from spaninfer_engine.spec.mlp_nodes import Routing
from spaninfer_engine.spec.weight_nodes import Ones, Weight

Constant: TypeAlias = (
    int | float | str | bool | tuple[int, ...] | tuple[str, ...] | Scoring | RaggedScoring | Routing
)
Host: TypeAlias = NDArray[np.generic]
Packable: TypeAlias = Host | DummyArray  # what a weight is made of


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows [start, stop) of every head of weight[heads * rows, in], as [heads, rows, in].

    `transposed` swaps the last two axes.
    """

    heads: int
    start: int
    stop: int
    transposed: bool = False

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        rows = array.reshape(self.heads, -1, array.shape[-1])[:, self.start : self.stop]
        return rows.swapaxes(1, 2) if self.transposed else rows


@dataclass(frozen=True, slots=True)
class FlatRows:
    """A convolution's weight[out, ...] as the matrix [out, numbers of a place]."""

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        return array.reshape(len(array), -1)


@dataclass(frozen=True, slots=True)
class TapRows:
    """A convolution's weight[out, in, taps] as the matrix [out, taps * in]: tap by tap."""

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(len(array), -1)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """A matrix[out, in * count], which reads channel by channel, as one [out, count * in] that
    reads `count` rows side by side.
    """

    count: int

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        return TapRows()(array.reshape(len(array), -1, self.count))


@dataclass(frozen=True, slots=True)
class PartRows:
    """Part number `part` of `count` equal ones that lie one below the other."""

    part: int
    count: int

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        size = len(array) // self.count
        return array[self.part * size : (self.part + 1) * size]


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Some parts of every group of rows, part by part: a weight[groups * sum(sizes), in] holds
    parts of these sizes in each group.
    """

    sizes: tuple[int, ...]
    parts: tuple[int, ...]

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        return array[self.order(len(array))]

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the place, of `count`, of each row that is taken."""
        places = np.arange(count).reshape(-1, sum(self.sizes))
        stops = np.cumsum(self.sizes)
        taken = [places[:, stops[part] - self.sizes[part] : stops[part]] for part in self.parts]
        return np.concatenate([each.reshape(-1) for each in taken])


@dataclass(frozen=True, slots=True)
class Transposed:
    """A matrix stored [in, out] as [out, in]."""

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        return np.ascontiguousarray(array.T)


@dataclass(frozen=True, slots=True)
class OneRow:
    """All numbers as a single row: [n] as [1, n]."""

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        return array.reshape(1, -1)


@dataclass(frozen=True, slots=True)
class UnitRows:
    """Every row divided by its L2 norm (in float32; norms below 1e-12 count as 1e-12)."""

    def __call__(self, array: Host) -> Host:
        """Return a new array of the same number format."""
        rows = array.astype(np.float32)
        return normalize_rows(rows).astype(array.dtype)


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Each row, or number, times a factor of its own, which a second tensor holds."""

    def __call__(self, array: Host, factors: Host) -> Host:
        """Return a new array."""
        columns = factors.astype(np.float32).reshape(-1, *(1,) * (array.ndim - 1))
        scaled: Host = array.astype(np.float32) * columns
        return scaled


@dataclass(frozen=True, slots=True)
class LastAxis:
    """All rows along the last axis: [1, n, C] as [n, C]."""

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        return array.reshape(-1, array.shape[-1])


@dataclass(frozen=True, slots=True)
class TakenApart:
    """Numbers that take turns along an axis, those at even places in front of those at odd ones."""

    axis: int

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        return array.take(self.order(array.shape[self.axis]), self.axis)

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the place, of `count`, of each number in its new one."""
        places = np.arange(count)
        return np.concatenate([places[0::2], places[1::2]])


@dataclass(frozen=True, slots=True)
class OneAxis:
    """All numbers along one axis: [1, n] as [n]."""

    def __call__(self, array: Host) -> Host:
        """Return the view."""
        return array.reshape(-1)


@dataclass(frozen=True, slots=True)
class ByDistance:
    """A table[buckets, H] of relative position biases as [H, 2 * reach + 1]: by distance, from keys
    `reach` positions in front of the query to those as far behind it; beyond, nothing changes.
    """

    reach: int

    def __call__(self, array: Host) -> Host:
        """Return a new array."""
        distances = np.arange(-self.reach, self.reach + 1)
        buckets = relative_position_buckets(distances, len(array), self.reach)
        return np.ascontiguousarray(array[buckets].T)


View: TypeAlias = (
    HeadRows
    | FlatRows
    | TapRows
    | JoinedRows
    | PartRows
    | GroupedRows
    | Transposed
    | OneRow
    | UnitRows
    | ScaledRows
    | LastAxis
    | TakenApart
    | OneAxis
    | ByDistance
)


@dataclass(frozen=True, slots=True)
class Use:
    """One use of checkpoint tensors by an operation, under the name of the operator's argument.

    Several tensors, or one with `stacked`, are joined along a new first axis; with ScaledRows the
    second scales the first.
    """

    argument: str
    tensors: tuple[Weight | Ones, ...]
    stacked: bool = False
    view: View | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the operator sees, before any view."""
        shape = self.tensors[0].shape
        return (len(self.tensors), *shape) if self.stacked else shape

    @property
    def viewed_shape(self) -> tuple[int, ...]:
        """The shape behind the view."""
        if self.view is None or isinstance(self.view, UnitRows | ScaledRows | TakenApart):
            return self.shape
        return self.view(np.broadcast_to(np.float32(0), self.shape)).shape  # takes no memory

    @property
    def num_rows(self) -> int:
        """Rows of the matrix that the operator sees."""
        match self.view:
            case GroupedRows():
                return len(self.view.order(self.shape[0]))
            case Transposed():
                return self.shape[1]
            case _:
                return self.shape[0]

    def assemble(self, arrays: tuple[Packable, ...]) -> Packable:
        """Return what the operator's definition takes, from the arrays of `tensors` in order."""
        assert len(arrays) == len(self.tensors)
        if isinstance(arrays[0], DummyArray):
            return self._noise(arrays[0])
        if isinstance(self.view, ScaledRows):
            _, factors = arrays
            assert not isinstance(factors, DummyArray)
            return self.view(arrays[0], factors)
        assert self.stacked or len(arrays) == 1
        array = np.stack(arrays) if self.stacked else arrays[0]
        return array if self.view is None else self.view(array)

    def _noise(self, noise: DummyArray) -> DummyArray:
        """Return as much noise as the operator takes numbers: in any order it is the same noise."""
        return replace(noise, shape=self.viewed_shape)

    def __str__(self) -> str:
        """Return argument, names, shape and view."""
        first, last = self.tensors[0].name, self.tensors[-1].name
        names = first if len(self.tensors) == 1 else f"{first} … {last}"
        shape = " ".join(map(str, self.shape))
        return f"{self.argument}={names}[{shape}]" + (f" as {self.view}" if self.view else "")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator of ops/table.py, from named values to named values."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[Use, ...] = ()
    constants: tuple[tuple[str, Constant], ...] = ()
    layer: int | None = None

    def constant(self, name: str) -> Constant:
        """Return the constant called `name`; KeyError if there is none."""
        return dict(self.constants)[name]

    def scoring(self) -> Scoring:
        """Return the scores of an attention over the KV cache."""
        value = self.constant("scoring")
        assert isinstance(value, Scoring), value
        return value

    def ragged_scoring(self) -> RaggedScoring:
        """Return the scores of an attention among tokens of one text."""
        value = self.constant("scoring")
        assert isinstance(value, RaggedScoring), value
        return value

    def routing(self) -> Routing:
        """Return the routing function of a choice of experts."""
        value = self.constant("routing")
        assert isinstance(value, Routing), value
        return value

    def number(self, name: str) -> float:
        """Return the constant called `name`, which is a number."""
        value = self.constant(name)
        assert isinstance(value, (int, float)), (name, value)
        return value

    def __str__(self) -> str:
        """Return the operation as a line."""
        results = " ".join(self.outputs)
        settings = [str(use) for use in self.weights]
        settings += [f"{name}={value}" for name, value in self.constants]
        call = ", ".join((*self.inputs, *settings))
        return f"{results} = {self.operator}({call})" if results else f"{self.operator}({call})"
