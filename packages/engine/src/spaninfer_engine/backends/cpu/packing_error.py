"""The error of quantised weights, per packed tensor: what packing changed of the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import PANEL, Packed, unpack

from spaninfer_engine.backends.cpu.gemm import EXACT_PRODUCT
from spaninfer_engine.load.packed.tensor_error import ErrorSums, TensorError

Floats = NDArray[np.float64]

SAMPLED_PANELS = 32
"""Panels of 64 outputs that are compared, evenly spaced: 2,048 rows of a tensor give its error to
a percent of it, and a model of 7 billion weights takes seconds."""


def is_made(packed: Any, layout: str) -> bool:
    """Return True for a weight that packing quantised, and not a checkpoint, nor for a router."""
    if not isinstance(packed, Packed) or layout == EXACT_PRODUCT:
        return False
    format = packed.layout.format
    return format.is_quantised and format.form is None


def packing_error(name: str, packed: Packed, parts: Sequence[NDArray[Any]]) -> TensorError:
    """Return the error of a packed weight; `parts` [N O C] lie below one another in it.

    Of large tensors, SAMPLED_PANELS times 64 rows are compared.
    """
    layout, count = packed.layout, packed.count
    sums = ErrorSums()
    for panel in _sampled(count * layout.panels):
        numbers = np.concatenate(list(_rows(parts, *divmod(panel, layout.panels))))
        one = Packed(replace(layout, outputs=len(numbers)), packed.panels[panel : panel + 1])
        sums.add(numbers, unpack(one))
    shape = (*((count,) if count > 1 else ()), layout.outputs, layout.channels)
    return sums.of(name, shape, layout.panel_bytes * 8 / (PANEL * layout.channels))


def _sampled(panels: int) -> list[int]:
    count = min(panels, SAMPLED_PANELS)
    return [number * panels // count for number in range(count)]


def _rows(parts: Sequence[NDArray[Any]], number: int, panel: int) -> Iterator[Floats]:
    """Yield the rows of a panel of weight `number`, from parts[N O C] below one another."""
    first, stop = panel * PANEL, (panel + 1) * PANEL
    for part in parts:
        yield np.asarray(part[number, max(0, first) : max(0, stop)], np.float64)
        first, stop = first - part.shape[1], stop - part.shape[1]
