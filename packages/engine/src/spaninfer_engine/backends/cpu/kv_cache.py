"""The KV cache of the CPU backend: float32, 16-bit, or quantised values beside their scales.

Codes of one token and head are a record, with the zero and the scale that they were made with in
front: what is read together lies together. Keys and values of codes are arrays of such records.
A latent of MLA and the rotary part behind it have a zero and a scale each: one is normalised, the
other is not, and the larger would take the levels of the smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import KVArray, aligned

from spaninfer_engine.backends.host.states import as_rows
from spaninfer_engine.cache.memory_plan import padded_bytes
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
            "kv_dtype uint4 is too coarse for this model's sparse attention: one "
            "selected key in nine would differ; choose int8, or omit it"
        )
    sizes = (group.key_size,) if group.values_in_keys else (group.key_size, group.value_size)
    split = group.value_size if group.rotary_dim else None
    forms = [_form(size, kind, split) for size in sizes]
    heads = span_len * group.kv_heads
    widths = [heads * form.itemsize for form in forms]
    memory = aligned((num_spans, len(group.layers), sum(widths)), np.uint8)
    keys = _records(memory[..., : widths[0]], forms[0], span_len, group.kv_heads)
    if group.values_in_keys:
        values = keys.view(_form(group.value_size, kind, of=forms[0]))
    else:
        values = _records(memory[..., widths[0] :], forms[1], span_len, group.kv_heads)
    rows = as_rows(memory)
    if kind in _FLOATS:
        return SpanCache(keys["numbers"], values["numbers"], rows)
    return SpanCache(keys, values, rows)


def cached_in(part: NDArray[Any]) -> KVArray:
    """Return keys or values of a layer as kernels take them."""
    if part.dtype.names is None:
        return KVArray(part)
    array = KVArray(part["numbers"], part["scales"])
    if "rotary" not in part.dtype.names:
        return array
    first = _offset(part.dtype, "rotary") - _offset(part.dtype, "numbers")
    return replace(array, split=first * 8 // array.kind.bits)


def _form(
    size: int, kind: CacheKind, split: int | None = None, of: np.dtype[Any] | None = None
) -> np.dtype[Any]:
    """Return a record of one token and head: its numbers, behind the scales of codes.

    With `split`, codes from that one on, which have scales of their own, are `rotary` besides. The
    first numbers alone are a record `of` the whole one.
    """
    if kind == "uint4" and size % 2:
        raise ConfigError(
            "kv_dtype uint4 needs heads with an even number of channels, and this model "
            f"has some of {size}; choose int8, or leave it out"
        )
    fields: dict[str, tuple[Any, int]] = {"numbers": (_numbers(size, kind), 0)}
    if kind not in _FLOATS:
        scales = np.dtype((np.float32, (2 if split is None else 4,)))
        first = scales.itemsize if of is None else _offset(of, "numbers")
        fields = {"scales": (scales, 0), "numbers": (_numbers(size, kind), first)}
        if split is not None:
            rotary = first + _numbers(split, kind).itemsize
            fields["rotary"] = _numbers(size - split, kind), rotary
    formats, offsets = zip(*fields.values(), strict=True)
    form: dict[str, Any] = {"names": [*fields], "formats": formats, "offsets": offsets}
    if of is not None:
        form["itemsize"] = of.itemsize
    elif kind not in _FLOATS:  # padded, so that the scales of the next record are aligned
        form["itemsize"] = padded_bytes(first + _numbers(size, kind).itemsize)
    dtype: np.dtype[Any] = np.dtype(form)  # type: ignore[call-overload]
    return dtype


def _numbers(size: int, kind: CacheKind) -> np.dtype[Any]:
    if kind == "uint4":
        return np.dtype((np.uint8, (size // 2,)))
    return np.dtype((np.int8 if kind == "int8" else _FLOATS[kind], (size,)))


def _offset(record: np.dtype[Any], name: str) -> int:
    """Return where a field of a record begins, in bytes."""
    assert record.fields is not None
    return int(record.fields[name][1])


def _records(
    memory: NDArray[np.uint8], form: np.dtype[Any], span_len: int, kv_heads: int
) -> NDArray[Any]:
    """Return memory[S N bytes] as records [N S L K]."""
    num_spans, layers, _ = memory.shape
    records: NDArray[Any] = memory.view(form).reshape(num_spans, layers, span_len, kv_heads)
    assert np.may_share_memory(records, memory) or not memory.size
    return records.swapaxes(0, 1)
