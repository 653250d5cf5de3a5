"""AWQ's layout "gemm": codes of 4 bits packed along outputs in an order of their own.

qweight int32 [K N/8], qzeros int32 [K/g N/8], scales [K/g N] (AutoAWQ's packing_utils). Nibble i of
a word belongs to output 0 2 4 6 1 3 5 7 of its eight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.quantised.module import Module, group_len
from spaninfer_engine.load.quantised.packed_codes import PackedCodes
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

BITS, MIDDLE, PER_WORD = 4, 8, 8
_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


def read_awq(module: Module) -> QuantizedEntry:
    """Return an AWQ module's weight[N K]; errors name the module, or the key of the config."""
    _check_layout(module)
    groups, rows = module.matrix("scales")
    columns = module.matrix("qweight")[0]
    module.demand("qweight", (columns, rows // PER_WORD))
    has_zeros = "qzeros" in module
    if has_zeros:
        module.demand("qzeros", (groups, rows // PER_WORD))
    said = module.settings.get("group_size", module.settings.get("q_group_size"))
    group = group_len(module, columns, groups, said)
    format = WeightFormat(
        f"AWQ int4 {'per row' if group is None else f'g{group}'}",
        "integer",
        BITS,
        group_rows=1,
        group_columns=group,
        scale=module.scale_type("scales"),
        stored_bits=BITS + (BITS + 16) / (group or columns),
        zero="integer" if has_zeros else "none",
    )

    def load() -> QuantizedWeight:
        codes = _codes(module.read("qweight"), 0 if has_zeros else MIDDLE)
        scales = np.ascontiguousarray(module.scales("scales").T)
        zeros = np.asarray(_codes(module.read("qzeros"))) if has_zeros else None
        return QuantizedWeight(format, codes, scales, zeros)

    return module.entry(format, (rows, columns), load)


def _check_layout(module: Module) -> None:
    settings = module.settings
    version = str(settings.get("version", "gemm")).lower()
    bits = settings.get("bits", settings.get("w_bit", BITS))
    if version != "gemm" or bits != BITS:
        raise ConfigError(
            f"{module.source}: module {module.name!r} is in AWQ's version {version!r} with {bits} "
            "bits; version 'gemm' with 4 bits is read; quantise the model again in it"
        )


def _codes(words: NDArray[Any], middle: int = 0) -> PackedCodes:
    """Return codes [N ...] of words [... N/8]."""
    return PackedCodes(words, BITS, is_turned=True, order=_NIBBLE_OF_OUTPUT, middle=middle)
