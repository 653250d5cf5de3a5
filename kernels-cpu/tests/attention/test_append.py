"""Keys and values written to spans in every kind, against the definitions."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from spaninfer_kernels_cpu.attention.attend_call import LayerCache, append_call
from spaninfer_kernels_cpu.attention.kv_array import KVArray
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool
from spaninfer_op_reference import CodeRange

DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "int8": np.int8,
    "uint4": np.uint8,
}
SPAN_LEN = 8


class Case(NamedTuple):
    rows: int = 5
    heads: int = 2
    size: int = 64


CASES = [Case(), Case(rows=0), Case(rows=1, heads=1, size=80), Case(rows=70, heads=3, size=6)]


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_are_written_where_they_belong_and_nowhere_else(kind, case):
    rng = np.random.default_rng(3)
    rows, heads, size = case
    among = rng.standard_normal((rows, heads * size + 5)).astype(np.float32)
    among[:1, 2 : 2 + size] = 0.25  # a range of which 0 is not an end
    request = (np.arange(rows) % 3).astype(np.int32)
    position = (np.arange(rows) // 3).astype(np.int32)
    tables = rng.permutation(40)[:12].reshape(3, 4).astype(np.int32)
    spans = tables[request, position // SPAN_LEN], position % SPAN_LEN
    cached = poisoned(kind, (40, SPAN_LEN, heads, size))
    width = np.array([tables.shape[1]])
    places = [np.array([array.ctypes.data]) for array in (tables, request, position)]
    where = [place.ctypes.data for place in places]

    x = Matrix(among.ctypes.data + 8, among.strides[0])
    layer = LayerCache(cached, cached, where[0], width.ctypes.data, *where[1:])
    shared_thread_pool().run(Script([append_call(x, cached, layer)]), [rows])

    truth = among[:, 2:-3].reshape(rows, heads, size)
    if rows:
        check(kind, cached, spans, truth)
    untouched = np.ones((40, SPAN_LEN), bool)
    untouched[spans] = False
    poison = poisoned(kind, (40, SPAN_LEN, heads, size))
    assert cached.numbers[untouched].tobytes() == poison.numbers[untouched].tobytes()
    if cached.scales is not None:
        assert cached.scales[untouched].tobytes() == poison.scales[untouched].tobytes()


def check(kind, cached, spans, truth):
    """Numbers rounded to the nearest; codes, zeros and scales of the definition.

    An inverse instead of a quotient may move a code that lies in the middle between two.
    """
    got = cached.numbers[spans]
    if kind not in ("int8", "uint4"):
        np.testing.assert_array_equal(got, truth.astype(DTYPES[kind]))
        return
    codes = CodeRange.INT8 if kind == "int8" else CodeRange.UINT4
    scales, expected = cached.scales[spans], op_reference.quantize_cache(truth, codes)
    np.testing.assert_allclose(scales[..., 1:], expected.scale, rtol=1e-6)
    np.testing.assert_array_equal(scales[..., :1], expected.zero)
    got = got if kind == "int8" else op_reference.unpack_nibbles(got)
    assert np.abs(got.astype(int) - expected.codes).max() <= 1
    assert np.mean(got != expected.codes) < 0.002


def poisoned(kind, shape):
    """Numbers of a kind that nobody wrote to."""
    if kind not in ("int8", "uint4"):
        return KVArray(np.full(shape, np.nan, DTYPES[kind]))
    *places, size = shape
    codes = np.full((*places, size // 2 if kind == "uint4" else size), 77, DTYPES[kind])
    return KVArray(codes, np.full((*places, 2), np.nan, np.float32))


@pytest.mark.parametrize("kind", ["int8", "uint4"])
def test_a_latent_and_the_rotary_part_behind_it_are_quantised_by_themselves(kind):
    rng = np.random.default_rng(5)
    split, size, rows = 12, 16, 9
    x = rng.standard_normal((rows, size)).astype(np.float32)
    x[:, split:] *= 30
    cached = poisoned(kind, (2, SPAN_LEN, 1, size))
    keys = KVArray(cached.numbers, np.full((2, SPAN_LEN, 1, 4), np.nan, np.float32), split)
    first = split // 2 if kind == "uint4" else split
    latent = KVArray(keys.numbers[..., :first], keys.scales[..., :2])
    rotary = KVArray(keys.numbers[..., first:], keys.scales[..., 2:])
    position = np.arange(rows, dtype=np.int32)
    arrays = np.array([[1, 0]], np.int32), np.zeros(rows, np.int32), position
    places = [np.array([array.ctypes.data]) for array in arrays]
    tables, request, at = (place.ctypes.data for place in places)
    width = np.array([2])

    layer = LayerCache(keys, latent, tables, width.ctypes.data, request, at)
    call = append_call(Matrix(x.ctypes.data, x.strides[0]), keys, layer)
    shared_thread_pool().run(Script([call]), [rows])

    spans = 1 - position // SPAN_LEN, position % SPAN_LEN
    check(kind, latent, spans, x[:, None, :split])
    check(kind, rotary, spans, x[:, None, split:])


def test_bfloat16_is_rounded_to_the_nearest_and_keeps_nan():
    bits = np.random.default_rng(1).integers(0, 2**31, 4096, dtype=np.uint32)
    bits[:4] = 0x7F800001, 0x7FFFFFFF, 0x7F800000, 0x3F808000  # NaN twice, inf, a tie
    x = bits.view(np.float32).reshape(64, 64)
    cached = poisoned("bfloat16", (8, SPAN_LEN, 1, 64))
    arrays = np.arange(8, dtype=np.int32), np.zeros(64, np.int32), np.arange(64, dtype=np.int32)
    places = [np.array([array.ctypes.data]) for array in arrays]
    tables, request, position = (place.ctypes.data for place in places)
    width = np.array([8])

    layer = LayerCache(cached, cached, tables, width.ctypes.data, request, position)
    call = append_call(Matrix(x.ctypes.data, x.strides[0]), cached, layer)
    shared_thread_pool().run(Script([call]), [64])

    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(float)
    np.testing.assert_array_equal(cached.numbers.reshape(64, 64).astype(float), expected)
