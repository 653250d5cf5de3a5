"""Weights in 4-bit floats (e2m1): NVFP4 and MXFP4, in the layouts of Hugging Face folders.

NVFP4 has an e4m3 scale per 16 and a float32 factor per tensor: ModelOpt's `weight_scale_2`
multiplies, compressed-tensors' `weight_global_scale` divides. MXFP4 has a power of two per 32. Two
codes lie in a byte, the even one in its low half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import E2M1, QuantizedWeight, WeightFormat

from spaninfer_engine.load.quantised.bits import unpack_pairs
from spaninfer_engine.load.quantised.module import Module
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

NVFP4 = WeightFormat(
    "NVFP4", "table", 4, 1, 16, "e4m3", stored_bits=4.5, outer="float32", table=E2M1
)
MXFP4 = WeightFormat("MXFP4", "table", 4, 1, 32, "e8m0", stored_bits=4.25, table=E2M1)


def read_fp4(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of a module with `weight_packed` or bytes as `weight`."""
    codes = "weight_packed" if "weight_packed" in module else "weight"
    rows, half = module.matrix(codes)
    if module.scale_type("weight_scale") == "e8m0":
        return _blocks(module, codes, "weight_scale", (rows, half))
    module.demand("weight_scale", (rows, 2 * half // 16))
    factor = _factor(module)

    def load() -> QuantizedWeight:
        packed = unpack_pairs(module.read(codes))
        return QuantizedWeight(NVFP4, packed, module.scales("weight_scale"), outer=factor())

    return module.entry(NVFP4, (rows, 2 * half), load)


def read_mxfp4_experts(module: Module) -> QuantizedEntry:
    """Return the weight[E N K] of `NAME_blocks` [E N K/32 16] and `NAME_scales` [E N K/32]."""
    *outer, groups, size = module.shape("_blocks")
    if size != 16:
        raise module.error(f"_blocks is {list(module.shape('_blocks'))}; blocks have 16 bytes")
    module.demand("_scales", (*outer, groups))
    return _blocks(module, "_blocks", "_scales", (*outer, 16 * groups))


def _blocks(module: Module, codes: str, scales: str, shape: tuple[int, ...]) -> QuantizedEntry:
    module.demand(scales, (*shape[:-1], shape[-1] // 16))

    def load() -> QuantizedWeight:
        packed = unpack_pairs(module.read(codes).reshape(shape))
        return QuantizedWeight(MXFP4, packed, module.scales(scales))

    return module.entry(MXFP4, (*shape[:-1], 2 * shape[-1]), load)


def _factor(module: Module) -> Callable[[], NDArray[Any]]:
    """Return what reads the factor of a whole tensor, [1 1]."""
    name = "weight_global_scale" if "weight_global_scale" in module else "weight_scale_2"
    if prod(module.shape(name)) != 1:
        raise module.error(f"{name} is {list(module.shape(name))}, expected one number")
    if name == "weight_global_scale":
        return lambda: 1 / module.read(name).astype(np.float64).reshape(1, 1)
    return lambda: module.read(name).reshape(1, 1)
