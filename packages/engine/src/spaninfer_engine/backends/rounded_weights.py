"""Weights of GEMMs rounded to levels while loading, for backends that compute with plain numbers.

They hold the numbers that the levels stand for: what a format does to a model, without its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import (
    GRIDS,
    TABLES,
    QuantizedWeight,
    WeightFormat,
    dequantize_weight,
    grid_format,
    quantize_to_grid,
    quantize_to_table,
    table_format,
)

from spaninfer_engine.load.packed.packing import Packing
from spaninfer_engine.ops.fuse import single
from spaninfer_engine.ops.operation import Operation, Packable, Use
from spaninfer_engine.ops.table import Claim, Kernel, Ops, Pack

ROUNDED: Final = "rounded"  # the layout of weights[... O C]
TURNED: Final = "rounded, inputs first"  # of weights[... C O]

_OF_EXPERTS = ("gate", "up", "gate_up", "down")
_LAYOUTS = {
    ("linear", "weight"): ROUNDED,
    ("head_linear", "weight"): TURNED,
    **{("experts", name): ROUNDED for name in _OF_EXPERTS},
}


def rounded_format(packing: Packing) -> WeightFormat | None:
    """Return the format of the levels that weights are rounded to; None of others."""
    if packing.quantize in GRIDS:
        return grid_format(packing.quantize, packing.group)
    if packing.quantize in TABLES:
        return table_format(packing.quantize, packing.group)
    return None


def round_to_levels(weight: NDArray[Any], format: WeightFormat) -> QuantizedWeight:
    """Return weight[N K] in a format of `rounded_format`."""
    quantize = quantize_to_grid if format.table is None else quantize_to_table
    return quantize(weight, format)


def rounded_layout(operator: str, argument: str) -> str | None:
    """Return the layout of a GEMM's weight; None of what is not rounded: routers, tables."""
    return _LAYOUTS.get((operator, argument))


def rounded_weights(
    arrays: Sequence[Packable], layout: str, format: WeightFormat
) -> list[NDArray[np.float32]]:
    """Return the levels that weights are rounded to, whose groups are inputs of one output."""
    return [_rounded(np.asarray(array), layout, format) for array in arrays]


def _rounded(array: NDArray[Any], layout: str, format: WeightFormat) -> NDArray[np.float32]:
    by_output = array.swapaxes(-1, -2) if layout == TURNED else array
    rows = by_output.reshape(-1, by_output.shape[-1])
    numbers = dequantize_weight(round_to_levels(rows, format)).reshape(by_output.shape)
    return numbers.swapaxes(-1, -2) if layout == TURNED else numbers


def turned_experts(ops: Ops[Any]) -> Claim:
    """Claim experts whose weights have their inputs first: by its name alone none is told apart."""

    def build(operations: Sequence[Operation], pack: Pack) -> Kernel:
        def turning(uses: Sequence[Use], layout: str) -> Any:
            return pack(uses, TURNED if layout == ROUNDED else layout)

        return single(operations[0], ops, turning)

    return Claim(
        "experts",
        ("y = experts x i s",),
        "y",
        build,
        lambda operations: operations[0].constant("layout") == "io",
    )
