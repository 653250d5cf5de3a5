"""compressed-tensors, which llm-compressor writes: whole numbers, packed or one in a byte.

weight_packed int32 [N words] along inputs, weight_scale [N G], weight_shape, and where they are
asymmetric weight_zero_point, packed along outputs [words G]. Codes are stored 2^(b-1) higher. Of 3,
5, 6 and 7 bits, a word held as many as it holds whole before version 0.17, and none is cut since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.load.quantised.bits import (
    WORD_BITS,
    centred,
    unpack_stream,
    unpack_words,
)
from spaninfer_engine.load.quantised.module import Module, group_len
from spaninfer_engine.load.quantised.packed_codes import PackedCodes, codes_of_words
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

_PRESET_BITS = {"W4A16": 4, "W4A16_ASYM": 4, "W8A16": 8, "W4A8": 4, "W4AFP8": 4, "W8A8": 8}
_KINDS = ("Linear",)


def read_packed(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of `weight_packed`; errors name the module."""
    module.demand("weight_shape", (2,))
    rows, columns = (int(size) for size in module.read("weight_shape"))
    if min(rows, columns) < 1:
        raise module.error(f"weight_shape says {[rows, columns]}")
    bits = _bits(module)
    words = module.matrix("weight_packed")[1]
    is_dense = words == -(-columns * bits // WORD_BITS)
    if not is_dense and words != -(-columns // (WORD_BITS // bits)):
        raise module.error(f"weight_packed has {words} words for {columns} codes of {bits} bits")
    module.demand("weight_packed", (rows, words))
    groups = module.matrix("weight_scale")[1]
    module.demand("weight_scale", (rows, groups))
    group = group_len(module, columns, groups, None)
    unpack = unpack_stream if is_dense else unpack_words
    has_zeros = "weight_zero_point" in module
    if has_zeros:
        each = rows * bits / WORD_BITS if is_dense else rows / (WORD_BITS // bits)
        module.demand("weight_zero_point", (ceil(each), groups))
    group_of = _group_of(module, columns, groups, group)
    format = _format(module, bits, group, columns, has_zeros)
    if group_of is not None:
        format = replace(format, name=f"{format.name}, reordered", permuted=True)

    def load() -> QuantizedWeight:
        codes, scales = _codes(module, bits, columns, has_zeros), module.scales("weight_scale")
        if not has_zeros:
            return QuantizedWeight(format, codes, scales, group_of=group_of)
        packed = np.ascontiguousarray(module.read("weight_zero_point").T)
        zeros = unpack(packed, bits, rows).T
        return QuantizedWeight(format, codes, scales, zeros, group_of=group_of)

    return module.entry(format, (rows, columns), load)


def _codes(
    module: Module, bits: int, columns: int, has_zeros: bool
) -> PackedCodes | NDArray[np.integer[Any]]:
    """Return codes [N K], signed where there are no zeros; words may have unused bits."""
    words, middle = module.read("weight_packed"), 0 if has_zeros else 1 << (bits - 1)
    if words.shape[1] == -(-columns * bits // WORD_BITS):
        return codes_of_words(words, bits, columns, middle=middle)
    codes = unpack_words(words, bits, columns)
    return centred(codes, middle) if middle else codes


def read_int8(module: Module) -> QuantizedEntry:
    """Return the weight[N K] of int8 with a scale per tensor, per row or per group.

    Weights for activations of 16 bits are packed, and read by `read_packed`.
    """
    rows, columns = module.matrix("weight")
    scales = module.shape("weight_scale")
    shape = scales if len(scales) == 2 else (1, 1)
    if len(scales) < 2:
        module.demand("weight_scale", (1,) if scales else ())
    if shape != (1, 1):
        module.demand("weight_scale", (rows, shape[1]))
    group = group_len(module, columns, shape[1], None)
    has_zeros = "weight_zero_point" in module and bool(module.read("weight_zero_point").any())
    format = _format(module, 8, group, columns, has_zeros, rows=1 if shape[0] > 1 else None)
    format = replace(format, activations="int8")

    def load() -> QuantizedWeight:
        codes, scales = module.read("weight"), module.scales("weight_scale").reshape(shape)
        if not has_zeros:
            return QuantizedWeight(format, codes, scales)
        unsigned = (codes.astype(np.int16) + 128).astype(np.uint8)
        zeros = module.read("weight_zero_point").astype(np.int16).reshape(shape) + 128
        return QuantizedWeight(format, unsigned, scales, zeros)

    return module.entry(format, (rows, columns), load)


def _format(
    module: Module,
    bits: int,
    group: int | None,
    columns: int,
    has_zeros: bool,
    *,
    rows: int | None = 1,
) -> WeightFormat:
    where = "per row" if group is None else f"g{group}"
    return WeightFormat(
        f"int{bits} {where if rows == 1 else 'per tensor'}",
        "integer",
        bits,
        group_rows=rows,
        group_columns=group,
        scale=module.scale_type("weight_scale"),
        stored_bits=bits + (16 + bits * has_zeros) / (group or columns),
        zero="integer" if has_zeros else "none",
    )


def _group_of(
    module: Module, columns: int, groups: int, group: int | None
) -> NDArray[np.integer[Any]] | None:
    """Return the group of each column where they were reordered; all -1 means they were not."""
    if "weight_g_idx" not in module:
        return None
    module.demand("weight_g_idx", (columns,))
    if group is None:
        return None
    index = module.read("weight_g_idx").astype(np.int64)
    if (index == -1).all() or (index == np.arange(columns) // group).all():
        return None
    if index.min() < 0 or index.max() >= groups:
        raise module.error(f"weight_g_idx names groups {index.min()} to {index.max()} of {groups}")
    return index


# ---- the config ----------------------------------------------------------------------------------


def _bits(module: Module) -> int:
    """Return the bits of a module's codes: its config group's; CheckpointError where none fits."""
    groups = module.settings.get("config_groups")
    found = _matching(module.name, groups if isinstance(groups, Mapping) else {})
    if not found:
        raise module.error("no entry of config_groups has it as a target with weights.num_bits")
    bits = found[0]
    if not isinstance(bits, int) or not 1 <= bits <= 8:
        raise module.error(f"config_groups say num_bits {bits!r}; 1 to 8 are read")
    return bits


def _matching(name: str, groups: Mapping[str, Any]) -> list[object]:
    """Return the bits of the groups that a module is a target of: by its name, then by its class.

    A group may be a preset's name with the targets as its value.
    """
    named, of_class = [], []
    for key, group in groups.items():
        is_preset = key in _PRESET_BITS and isinstance(group, list)
        targets = group if is_preset else group.get("targets", [])
        bits = _PRESET_BITS[key] if is_preset else (group.get("weights") or {}).get("num_bits")
        if any(_names(target, name) for target in targets):
            named.append(bits)
        elif any(target in _KINDS for target in targets):
            of_class.append(bits)
    return named + of_class


def _names(target: str, name: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return target == name
