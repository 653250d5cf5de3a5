"""The KV cache of the CPU backend: float32, 16-bit, or quantised values beside their scales.

Codes of one token and head are a record, with the zero and the scale that they were made with in
front: what is read together lies together. Keys and values of codes are arrays of such records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import KVArray, aligned

from spaninfer_engine.backends.host.ops import as_rows
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.step import SpanCache
from spaninfer_engine.spec.nodes import CacheGroup

CacheKind = Literal["float32", "bfloat16", "float16", "int8", "uint4"]

_FLOATS: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def allocate(
    group: CacheGroup, num_spans: int, span_len: int, kind: CacheKind
) -> SpanCache[NDArray[Any]]:
    """Return spans of a cache group, whose contents are undefined; the system gives memory when
    they are written. ConfigError where two codes cannot share a byte, and for an indexer's keys in
    so few bits.
    """
    if group.is_index and kind == "uint4":
        raise ConfigError(
            "kv_dtype uint4 is too coarse for sparse attention: the keys of this model's indexer "
            "would select one key in nine differently; choose int8, or leave it out"
        )
    sizes = (group.key_dim,) if group.values_in_keys else (group.key_dim, group.value_dim)
    forms = [_form(size, kind) for size in sizes]
    heads = span_len * group.kv_heads
    widths = [heads * form.itemsize for form in forms]
    memory = aligned((num_spans, len(group.layers), sum(widths)), np.uint8)
    keys = _records(memory[..., : widths[0]], forms[0], span_len, group.kv_heads)
    if group.values_in_keys:
        values = keys.view(_form(group.value_dim, kind, forms[0].itemsize))
    else:
        values = _records(memory[..., widths[0] :], forms[1], span_len, group.kv_heads)
    rows = as_rows(memory)
    if kind in _FLOATS:
        return SpanCache(keys["numbers"], values["numbers"], rows)
    return SpanCache(keys, values, rows)


def cached_in(part: NDArray[Any]) -> KVArray:
    """Return keys or values of a layer as kernels take them."""
    return KVArray(part["numbers"], part["scales"]) if part.dtype.names else KVArray(part)


def _form(size: int, kind: CacheKind, itemsize: int | None = None) -> np.dtype[Any]:
    """Return a record of one token and head: its numbers, behind the scales of codes."""
    if kind == "uint4" and size % 2:
        raise ConfigError(
            f"kv_dtype uint4 takes heads of an even number of channels, and this model has some of "
            f"{size}; choose int8, or leave it out"
        )
    numbers: Any = {
        "int8": (np.int8, (size,)),
        "uint4": (np.uint8, (size // 2,)),
    }.get(kind) or (_FLOATS[kind], (size,))
    form: dict[str, Any] = {"names": ["numbers"], "formats": [numbers], "offsets": [0]}
    if kind not in _FLOATS:
        scales = (np.float32, (2,))
        form = {"names": ["scales", "numbers"], "formats": [scales, numbers], "offsets": [0, 8]}
    if itemsize is not None:
        form["itemsize"] = itemsize
    dtype: np.dtype[Any] = np.dtype(form)  # type: ignore[call-overload]
    return dtype


def _records(
    memory: NDArray[np.uint8], form: np.dtype[Any], span_len: int, kv_heads: int
) -> NDArray[Any]:
    """Return memory[S N bytes] as records [N S L K]."""
    num_spans, layers, _ = memory.shape
    records: NDArray[Any] = memory.view(form).reshape(num_spans, layers, span_len, kv_heads)
    assert np.may_share_memory(records, memory) or not memory.size
    return records.swapaxes(0, 1)
