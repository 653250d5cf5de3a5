"""Weights on their way from a checkpoint to a backend: read, assembled and packed, once per use.

A quantised weight reaches a backend as it is stored where the backend has a kernel for its format
(`Tensors.quantized_packer`); for others it is expanded to the numbers that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

import numpy as np
from spaninfer_op_reference import QuantizedWeight, WeightFormat, stack_weights

from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.ops.operation import GroupedRows, Packable, TakenApart, Use
from spaninfer_engine.ops.step import A
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.weight_nodes import Ones, Weight


class Reader(Protocol):
    """A source of weights (load.tensors.reader.WeightReader, load.dummy.DummyReader)."""

    def read(self, name: str) -> Packable:
        """The array of this name."""
        ...

    def quantized(self, name: str) -> QuantizedEntry | None:
        """A weight that is stored quantised, not yet read; None of plain numbers."""
        ...


@dataclass(frozen=True, slots=True)
class PackedUse:
    """Record of one packed weight: one or more weights joined along their rows, and their formats.

    `is_expanded`: the backend holds the numbers, and not the codes. It holds them in `num_bytes`;
    the file has `stored_bytes`.
    """

    formats: frozenset[WeightFormat]
    is_expanded: bool
    num_bytes: int
    stored_bytes: int


class Packer(Generic[A]):
    """A Pack that reads and packs uses, once per layout; `quantised` lists what was quantised.

    Weights with the names `kept` are packed as plain numbers, whatever others are rounded to.
    """

    def __init__(self, ops: Ops[A], reader: Reader, kept: Collection[str] = ()) -> None:
        self._ops, self._reader, self._kept = ops, reader, kept
        self._packed: dict[object, A] = {}
        self.quantised: list[PackedUse] = []

    def __call__(self, uses: Sequence[Use], layout: str) -> A:
        """Return the packed weight of these uses."""
        if self._keeps(uses):
            layout = "plain"
        key = layout, tuple((use.tensors, use.stacked, use.view) for use in uses)
        if key not in self._packed:
            self._packed[key] = self._pack(uses, layout)
        return self._packed[key]

    def _keeps(self, uses: Sequence[Use]) -> bool:
        tensors = [tensor for use in uses for tensor in use.tensors]
        return all(isinstance(each, Weight) and each.name in self._kept for each in tensors)

    def _pack(self, uses: Sequence[Use], layout: str) -> A:
        entries = [[self._quantized(each) for each in use.tensors] for use in uses]
        stored = [[entry for entry in each if entry is not None] for each in entries]
        known = [entry for each in stored for entry in each]
        whole = list(map(len, stored)) == list(map(len, entries))
        pack = self._packer_as_stored(uses, layout, stored) if whole else None
        is_expanded = pack is None
        kept = self._ops.expanded_layout if is_expanded else self._ops.coded_layout
        if kept(layout) != layout:
            return self(uses, kept(layout))
        if pack is None:
            packed = self._ops.pack([self.expanded(use) for use in uses], layout)
        else:
            packed = pack([_load(use, each) for use, each in zip(uses, stored, strict=True)])
        if known:
            formats = frozenset(entry.format for entry in known)
            stored_bytes = sum(entry.num_bytes for entry in known)
            use = PackedUse(formats, is_expanded, packed_bytes(packed), stored_bytes)
            self.quantised.append(use)
        return packed

    def _packer_as_stored(
        self, uses: Sequence[Use], layout: str, stored: Sequence[Sequence[QuantizedEntry]]
    ) -> Callable[[Sequence[QuantizedWeight]], A] | None:
        """Return what puts codes into the backend's order; None where it has no kernel for them."""
        formats = [entry.format for each in stored for entry in each]
        pack = self._ops.quantized_packer(formats, layout)
        is_mixed = any(len({entry.format for entry in each}) > 1 for each in stored)
        if pack is None or is_mixed or not all(map(_keeps_codes, uses, stored)):
            return None
        return pack

    def expanded(self, use: Use) -> Packable:
        """Return the numbers of a use, read anew."""
        return use.assemble(tuple(map(self._read, use.tensors)))

    def _quantized(self, tensor: Weight | Ones) -> QuantizedEntry | None:
        return None if isinstance(tensor, Ones) else self._reader.quantized(tensor.name)

    def _read(self, tensor: Weight | Ones) -> Packable:
        if isinstance(tensor, Ones):
            return np.ones(tensor.shape, np.float32)
        return self._reader.read(tensor.name)


def _keeps_codes(use: Use, stored: Sequence[QuantizedEntry]) -> bool:
    """Return True if a use reads the weight as it is, or its rows in another order."""
    if use.view is None:
        return True
    is_taken_apart = isinstance(use.view, TakenApart) and use.view.axis == len(use.shape) - 2
    is_of_rows = is_taken_apart or isinstance(use.view, GroupedRows)
    return is_of_rows and all(entry.format.group_rows == 1 for entry in stored)


def _load(use: Use, stored: Sequence[QuantizedEntry]) -> QuantizedWeight:
    weights = [entry.load() for entry in stored]
    weight = stack_weights(weights) if use.stacked else weights[0]
    if isinstance(use.view, TakenApart | GroupedRows):
        return weight.rows(use.view.order(weight.shape[-2]))
    return weight


def packed_bytes(packed: Any) -> int:
    """Return the bytes that a backend's weight takes."""
    num_bytes: int = getattr(packed, "panels", packed).nbytes
    return num_bytes
