"""Weights in 8-bit floats (e4m3), with a scale per tensor, per row or per block.

DeepSeek and Qwen write `weight_scale_inv`, compressed-tensors, fbgemm and ModelOpt `weight_scale`;
all of them multiply.
"""

from __future__ import annotations

import numpy as np
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.load.quantised.module import Module
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

BLOCK = 128
_Group = tuple[int | None, int | None]


def read_fp8(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of a module in e4m3; CheckpointError names the module."""
    suffix = "weight_scale_inv" if "weight_scale_inv" in module else "weight_scale"
    rows, columns = module.matrix("weight")
    group, shape = _group(module, suffix, rows, columns)
    format = WeightFormat(
        f"FP8 {_words(group)}",
        "e4m3",
        8,
        group_rows=group[0],
        group_columns=group[1],
        scale=module.scale_type(suffix),
        stored_bits=8 + 32 / ((group[0] or rows) * (group[1] or columns)),
        activations="e4m3",
    )

    def load() -> QuantizedWeight:
        codes = module.read("weight").view(np.uint8)
        return QuantizedWeight(format, codes, module.scales(suffix).reshape(shape))

    return module.entry(format, (rows, columns), load)


def _group(module: Module, suffix: str, rows: int, columns: int) -> tuple[_Group, tuple[int, int]]:
    """Return which rows and columns share a scale, and the scales' shape as a matrix."""
    stored = module.shape(suffix)
    for group in ((None, None), (1, None), _block(module), (1, 32)):
        shape = -(-rows // (group[0] or rows)), -(-columns // (group[1] or columns))
        if stored == shape or (len(stored) != 2 and _squeezed(stored) == _squeezed(shape)):
            return group, shape
    raise module.error(
        f"{suffix} is {list(stored)} for a weight {[rows, columns]}; known are one scale, one per "
        f"row, per block of {list(_block(module))}, and per 32 of a row"
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as it is written without axes of one: [N 1], ModelOpt's [N/128 1 K/128 1]."""
    return tuple(size for size in shape if size != 1)


def _block(module: Module) -> tuple[int, int]:
    """Return rows and columns of a block, which the config says; 128 by 128 where it does not."""
    said = module.settings.get("weight_block_size")
    if isinstance(said, list) and len(said) == 2 and all(isinstance(x, int) for x in said):
        return said[0], said[1]
    return BLOCK, BLOCK


def _words(group: _Group) -> str:
    match group:
        case None, None:
            return "per tensor"
        case 1, None:
            return "per row"
        case 1, columns:
            return f"g{columns}"
    return f"blocks of {group[0]}x{group[1]}"
