"""The CPU backend's packed weights in a file: written once, and mapped at every later start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import LAYOUT, Codes, Format, InnerScales, KernelError, Layout, Packed
from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.cpu.gemm import STACK, TURNED_STACK
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.packed.file import AGAIN, Contents, PackedReader, write_packed
from spaninfer_engine.load.packed.packing import Packing
from spaninfer_engine.ops.operation import Use

Weight: TypeAlias = Packed | NDArray[Any]

_STACKS = (STACK, TURNED_STACK)
_NUMBERS = tuple(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))


def name_of(uses: Sequence[Use], layout: str) -> str:
    """Return under which name weights lie in a file: how they are laid out, and all tensors."""
    return f"{layout}: {' + '.join(map(_name, uses))}"


def write_weights(
    path: Path,
    weights: Mapping[str, Weight],
    packing: Packing,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    formats: Mapping[str, WeightFormat],
) -> None:
    """Write weights by name, with the tensors that they were made of, and the formats of these.

    OSError as writing raises it.
    Panels come first: they are multiples of a cache line, so every one begins with a line; then
    arrays by the size of their numbers, so each is aligned. All can be used where they are mapped.
    """
    panels = {name: each for name, each in weights.items() if isinstance(each, Packed)}
    rest = {name: each for name, each in weights.items() if not isinstance(each, Packed)}
    arrays = {name: each.panels for name, each in panels.items()}
    arrays |= dict(sorted(rest.items(), key=lambda item: -item[1].itemsize))
    forms = {name: _form(each) for name, each in panels.items()}
    write_packed(path, arrays, Contents(LAYOUT, packing, forms, tensors, formats))


class PackedWeights:
    """The weights of a file, found instead of packed; once, so that programs which are bound when
    the file is closed, those of steps with media, find what others use.

    CheckpointError if they lie in an order that these kernels do not read.
    """

    def __init__(self, reader: PackedReader) -> None:
        self._reader = reader
        self._found: dict[str, Weight] = {}
        if reader.contents.layout != LAYOUT:
            raise CheckpointError(
                f"{reader.path} is packed in the layout {reader.contents.layout!r}, and the "
                f"kernels of this version read {LAYOUT!r}; {AGAIN}"
            )

    def pack(self, uses: Sequence[Use], layout: str) -> Weight:
        """Return what backends.cpu.ops packs for these uses, in the mapped file.

        CheckpointError unless it is there with the shapes that kernels will take for granted.
        """
        name = name_of(uses, layout)
        if name not in self._found:
            self._found[name] = self._find(name, uses, layout)
        return self._found[name]

    def _find(self, name: str, uses: Sequence[Use], layout: str) -> Weight:
        if name not in self._reader.arrays:
            raise CheckpointError(
                f"{self._reader.path} has no {name!r}: it was packed by another version or with "
                f"another spec; {AGAIN}"
            )
        array = self._reader.arrays[name].read()
        form = self._reader.contents.forms.get(name)
        weight = array if form is None else self._packed(name, form, array)
        if not _is_right(weight, _shape(uses, layout), layout):
            raise CheckpointError(f"{self._reader.path}: {name!r} has a wrong shape; {AGAIN}")
        return weight

    def _packed(self, name: str, form: Any, panels: NDArray[Any]) -> Packed:
        try:
            format, count, outputs, channels = form
            return Packed(Layout(_read_format(*format), outputs, channels), panels, count)
        except (TypeError, ValueError, KeyError, KernelError) as broken:
            raise CheckpointError(
                f"{self._reader.path}: {name!r} has the unknown form {form!r}; {AGAIN}"
            ) from broken


def _form(packed: Packed) -> list[Any]:
    layout = packed.layout
    sizes = packed.count, layout.outputs, layout.channels
    return [_write_format(layout.format), *sizes]


def _write_format(format: Format) -> list[Any]:
    codes = None if format.form is None else asdict(format.form)
    return [format.kind, format.group, codes]


def _read_format(kind: Any, group: Any, codes: Any) -> Format:
    """Return a format; TypeError, ValueError or KernelError of what is none."""
    if codes is None:
        return Format(kind, group)
    inner, table = codes["inner"], codes["table"]
    changed = {
        "inner": None if inner is None else InnerScales(**inner),
        "table": None if table is None else tuple(table),
    }
    return Format(kind, group, Codes(**codes | changed))


def _is_right(weight: Weight, shape: tuple[int, ...], layout: str) -> bool:
    """Return True if this memory has the shape, dtype and alignment that kernels assume."""
    if isinstance(weight, Packed):
        sizes = weight.layout
        whole = (weight.count * sizes.panels, sizes.panel_bytes)
        count = (weight.count,) if layout in _STACKS else ()
        return (
            (*count, sizes.outputs, sizes.channels) == shape
            and weight.panels.dtype == np.uint8
            and weight.panels.shape == whole
        )
    known = _NUMBERS[:1] if layout == "wide" else _NUMBERS
    return weight.shape == shape and weight.dtype in known


def _shape(uses: Sequence[Use], layout: str) -> tuple[int, ...]:
    """Return the shape of weights below one another; of stacks (N O C), of others (O C)."""
    shapes = [use.viewed_shape for use in uses]
    if layout not in _STACKS:
        return sum(shape[0] for shape in shapes), *shapes[0][1:]
    rows, columns = (2, 1) if layout == TURNED_STACK else (1, 2)
    return shapes[0][0], sum(shape[rows] for shape in shapes), shapes[0][columns]


def _name(use: Use) -> str:
    names = ", ".join(weight.name for weight in use.tensors)
    name = f"[{names}]" if use.stacked else names
    return name if use.view is None else f"{name} as {use.view}"
