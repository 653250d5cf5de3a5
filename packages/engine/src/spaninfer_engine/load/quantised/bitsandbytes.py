"""bitsandbytes: NF4 and FP4 in blocks of the flattened weight, int8 with a scale per row.

4 bits: `weight` uint8, the even number in the high half; `weight.absmax` per block, itself in 8
bits where it is nested; `weight.quant_map`; JSON in `weight.quant_state.bitsandbytes__nf4`.
8 bits: `weight` int8 and `SCB` float32 [N], W = w * SCB / 127.
"""

from __future__ import annotations

import json
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.load.quantised.bits import unpack_pairs
from spaninfer_engine.load.quantised.module import Module
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

STATE = "weight.quant_state.bitsandbytes__"
KINDS = ("nf4", "fp4")
INT8 = WeightFormat("bitsandbytes int8", "integer", 8, 1, None, "float32", stored_bits=8)


def read_4bit(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of a module in NF4 or FP4; errors name the module."""
    kind = next(kind for kind in KINDS if STATE + kind in module)
    state = _state(module, kind)
    rows, columns = state["shape"]
    block = state["blocksize"]
    blocks = -(-rows * columns // block)
    module.demand("weight.absmax", (blocks,))
    if module.type("weight").itemsize * prod(module.shape("weight")) != -(-rows * columns // 2):
        raise module.error(f"weight is {list(module.shape('weight'))} for {[rows, columns]}")
    module.demand("weight.quant_map", (16,))
    if _is_nested(module):
        count = -(-blocks // state["nested_blocksize"])
        module.demand("weight.nested_absmax", (count,))
        module.demand("weight.nested_quant_map", (256,))
    table = module.read("weight.quant_map").astype(np.float32)
    common = gcd(block, columns)  # blocks that cross rows are cut where rows end
    format = WeightFormat(
        f"bitsandbytes {kind.upper()} g{block}",
        "table",
        4,
        group_rows=1,
        group_columns=common,
        scale="float32",
        stored_bits=4 + (8 if _is_nested(module) else 32) / block,
        table=tuple(map(float, table)),
    )

    def load() -> QuantizedWeight:
        data = np.ascontiguousarray(module.read("weight")).reshape(-1).view(np.uint8)
        swapped = data >> np.uint8(4) | data << np.uint8(4)  # even numbers lie in high halves
        codes = unpack_pairs(swapped)[: rows * columns].reshape(rows, columns)
        scales = np.repeat(_scales(module, state), block // common)[: codes.size // common]
        return QuantizedWeight(format, codes, scales.reshape(rows, -1))

    return module.entry(format, (rows, columns), load)


def read_8bit(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of a module in int8; errors name the module."""
    rows, columns = module.matrix("weight")
    module.demand("SCB", (rows,))

    def load() -> QuantizedWeight:
        scales = module.read("SCB").astype(np.float64)[:, None] / 127
        return QuantizedWeight(INT8, module.read("weight"), scales)

    return module.entry(INT8, (rows, columns), load)


def _scales(module: Module, state: dict[str, Any]) -> NDArray[np.float32]:
    """Return the scale of every block; nested ones as bitsandbytes computes them, in float32."""
    absmax = module.read("weight.absmax")
    if not _is_nested(module):
        return absmax.astype(np.float32)
    values = module.read("weight.nested_quant_map").astype(np.float32)[absmax]
    above = module.read("weight.nested_absmax").astype(np.float32)
    each = np.repeat(above, state["nested_blocksize"])[: len(values)]
    scales: NDArray[np.float32] = values * each + np.float32(state["nested_offset"])
    return scales


def _is_nested(module: Module) -> bool:
    return module.type("weight.absmax") == np.uint8


def _state(module: Module, kind: str) -> dict[str, Any]:
    """Return the checked JSON object of a module."""
    try:
        state = json.loads(module.read(STATE + kind).tobytes())
        rows, columns = map(int, state["shape"])
        block = int(state["blocksize"])
        nested = {}
        if _is_nested(module):
            nested = {
                "nested_blocksize": int(state["nested_blocksize"]),
                "nested_offset": float(state["nested_offset"]),
            }
    except (ValueError, KeyError, TypeError) as broken:
        raise module.error(f"{STATE}{kind} is damaged: {broken!r}") from broken
    if min(rows, columns, block, nested.get("nested_blocksize", 1)) < 1:
        raise module.error(f"{STATE}{kind} says shape {[rows, columns]} and blocksize {block}")
    return {"shape": (rows, columns), "blocksize": block, **nested}
