"""Scales of a KV cache in 8 bits that a checkpoint brings along: checked, and not needed.

They are one per layer, or per KV head of a layer, and were calibrated before any token was known.
Quantised KV caches here have a scale per token and head instead, from the very numbers that they
store (decision 0053).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from spaninfer_engine.errors import CheckpointError, shown
from spaninfer_engine.load.tensors.dtype import FLOATS

SCALES = ("k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale", "output_scale")
ZERO_POINTS = ("k_zero_point", "v_zero_point", "q_zero_point")
KV_CACHE = frozenset(SCALES + ZERO_POINTS)
"""The ends of names of tensors that say how a KV cache was quantised."""


def check_kv_scales(source: str, entries: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a scale that is no finite number above 0: the file is damaged."""
    for name, entry in entries.items():
        if not name.endswith(SCALES) or name.rpartition(".")[2] not in SCALES:
            continue
        if entry.dtype not in FLOATS.values():
            raise CheckpointError(
                f"{source}: tensor {name!r} holds {entry.dtype}; scales of a KV cache are floats"
            )
        numbers = np.asarray(entry.read(), np.float64)
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))]
        if wrong.size:
            raise CheckpointError(
                f"{source}: tensor {name!r} holds {shown(float(wrong[0]))}; scales of a KV cache "
                "are finite and above 0; the file is damaged, download it again"
            )
