"""GPTQ: codes packed along inputs, zeros along outputs, one scale per group of inputs.

qweight int32 [K*b/32 N], qzeros int32 [G N*b/32], scales [G N], g_idx int32 [K] where columns were
reordered. The layout is AutoGPTQ's, which GPTQModel and AutoRound write, too; version 1 stores
zeros less one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.quantised.bits import WORD_BITS, unpack_stream
from spaninfer_engine.load.quantised.module import Module, group_len
from spaninfer_engine.load.quantised.packed_codes import codes_of_words
from spaninfer_engine.load.tensors.quantised import QuantizedEntry

BITS = (2, 3, 4, 8)
_VERSIONS = {None: 1, "gptq": 1, "gptq_v2": 0}  # what is added to stored zeros


def read_gptq(module: Module) -> QuantizedEntry:
    """Return a GPTQ module's weight[N K]; errors name the module, or the key of the config."""
    offset = _zero_offset(module)
    groups, rows = module.matrix("scales")
    bits = WORD_BITS * module.matrix("qzeros")[1] // rows
    if bits not in BITS:
        raise module.error(f"qzeros {list(module.shape('qzeros'))} mean {bits} bits; {BITS} are")
    columns = module.matrix("qweight")[0] * WORD_BITS // bits
    module.demand("qweight", (columns * bits // WORD_BITS, rows))
    module.demand("qzeros", (groups, rows * bits // WORD_BITS))
    group = group_len(module, columns, groups, module.settings.get("group_size"))
    group_of = _group_of(module, columns, groups, group)
    zeros = _zeros(module, bits, rows, offset)
    is_symmetric = bool((zeros == 1 << (bits - 1)).all())
    format = WeightFormat(
        _name("GPTQ", bits, group, reordered=group_of is not None),
        "integer",
        bits,
        group_rows=1,
        group_columns=group,
        scale=module.scale_type("scales"),
        stored_bits=bits + (bits + 16) / (group or columns),
        zero="none" if is_symmetric else "integer",
        permuted=group_of is not None,
    )

    def load() -> QuantizedWeight:
        words, middle = module.read("qweight"), 1 << (bits - 1) if is_symmetric else 0
        codes = codes_of_words(words, bits, columns, is_down=True, middle=middle)
        scales = np.ascontiguousarray(module.scales("scales").T)
        zeros = None if is_symmetric else _zeros(module, bits, rows, offset).T
        return QuantizedWeight(format, codes, scales, zeros, group_of=group_of)

    return module.entry(format, (rows, columns), load)


def _name(method: str, bits: int, group: int | None, *, reordered: bool = False) -> str:
    order = ", reordered" if reordered else ""
    return f"{method} int{bits} {'per row' if group is None else f'g{group}'}{order}"


def _zero_offset(module: Module) -> int:
    """Return what is added to stored zeros; ConfigError for layouts of other kernels."""
    settings = module.settings
    version = settings.get("checkpoint_format", settings.get("format"))
    is_auto_round = str(settings.get("quant_method")).startswith("auto")
    if settings.get("is_marlin_format") or not (version in _VERSIONS or is_auto_round):
        raise ConfigError(
            f"{module.source}: module {module.name!r} is in GPTQ's checkpoint_format "
            f"{'marlin' if settings.get('is_marlin_format') else version!r}; gptq and gptq_v2 are "
            "read; save the model in one of these with GPTQModel"
        )
    return _VERSIONS.get(version, 1)


def _zeros(module: Module, bits: int, rows: int, offset: int) -> NDArray[np.integer[Any]]:
    """Return zeros [G N]; version 1 writes a zero of 0 as the largest code."""
    stored = unpack_stream(module.read("qzeros"), bits, rows).astype(np.int16)
    zeros: NDArray[np.integer[Any]] = (stored + offset) & ((1 << bits) - 1)
    return zeros


def _group_of(
    module: Module, columns: int, groups: int, group: int | None
) -> NDArray[np.integer[Any]] | None:
    """Return the group of each column; None where groups are neighbours."""
    if "g_idx" not in module:
        return None
    module.demand("g_idx", (columns,))
    if group is None:
        return None
    index = module.read("g_idx").astype(np.int64)
    index = np.where(index < 0, index + groups, index)
    if index.min() < 0 or index.max() >= groups:
        raise module.error(f"g_idx names groups {index.min()} to {index.max()} of {groups}")
    return None if (index == np.arange(columns) // group).all() else index
