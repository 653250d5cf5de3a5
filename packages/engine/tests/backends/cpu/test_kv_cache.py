"""Memory layout of quantised keys and values, and its description for kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from spaninfer_engine.backends.cpu.kv_cache import allocate, cached_in
from spaninfer_engine.cache.memory_plan import span_bytes
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.startup.limits import STORED
from spaninfer_kernels_cpu.attention.kv_array import check_cache

LATENT = CacheGroup(0, (0, 3), kv_heads=1, key_size=40, value_size=32, values_in_keys=True)


@pytest.mark.parametrize(("kind", "code_bytes"), [("int8", 40), ("uint4", 20)])
def test_latents_have_a_scale_in_front_for_each_of_their_parts(kind: Any, code_bytes: int) -> None:
    cache = allocate(LATENT, num_spans=3, span_len=4, kind=kind)

    keys, values = cached_in(cache.keys[1]), cached_in(cache.values[1])

    assert cache.keys.dtype.itemsize == 16 + code_bytes
    assert cache.rows.shape == (3, 2 * 4 * (16 + code_bytes))
    assert (keys.size, keys.split, keys.first_part) == (40, 32, 32)
    assert (values.size, values.split) == (32, None)
    assert keys.scales is not None
    assert values.scales is not None
    assert (keys.scales.shape[-1], values.scales.shape[-1]) == (4, 2)
    for whole, part in ((keys.numbers, values.numbers), (keys.scales, values.scales)):
        assert whole.ctypes.data == part.ctypes.data
        assert whole.strides[:3] == part.strides[:3]


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_latents_that_are_no_codes_have_no_scales(kind: Any) -> None:
    cache = allocate(LATENT, num_spans=3, span_len=4, kind=kind)

    keys, values = cached_in(cache.keys[0]), cached_in(cache.values[0])

    assert (keys.size, keys.split, keys.scales) == (40, None, None)
    assert np.shares_memory(keys.numbers, values.numbers)


def test_keys_without_values_in_them_have_one_scale() -> None:
    group = CacheGroup(0, (0,), kv_heads=2, key_size=8, value_size=6)
    cache = allocate(group, num_spans=2, span_len=4, kind="uint4")

    keys, values = cached_in(cache.keys[0]), cached_in(cache.values[0])

    assert (keys.split, values.split) == (None, None)
    assert (cache.keys.dtype.itemsize, cache.values.dtype.itemsize) == (8 + 4, 8 + 4)


@pytest.mark.parametrize(
    ("kind", "group", "record_bytes"),
    [
        ("int8", CacheGroup(0, (0, 1), kv_heads=3, key_size=34, value_size=10), (44, 20)),
        ("uint4", CacheGroup(0, (0, 1), kv_heads=3, key_size=34, value_size=18), (28, 20)),
        (
            "int8",
            CacheGroup(0, (0, 1), kv_heads=1, key_size=26, value_size=20, values_in_keys=True),
            (44, 44),
        ),
    ],
)
def test_records_are_padded_until_scales_are_aligned_and_are_counted_so(
    kind: Any, group: CacheGroup, record_bytes: tuple[int, int]
) -> None:
    cache = allocate(group, num_spans=2, span_len=4, kind=kind)

    parts = [cached_in(part[0]) for part in (cache.keys, cache.values)]

    assert (cache.keys.dtype.itemsize, cache.values.dtype.itemsize) == record_bytes
    check_cache(*parts)
    assert cache.rows.shape[1] == span_bytes(group, 4, replace(STORED[kind], latent_scales=2))
