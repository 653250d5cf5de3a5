"""Norm of heads, rotary embedding and append in one call, against the definitions in float64."""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from numba import njit
from spaninfer_kernels_cpu.elements import ELEMENTS
from spaninfer_kernels_cpu.rope_kernel import Heads, Rotary, rope_append
from spaninfer_kernels_cpu.spans import Place, Spans
from spaninfer_op_reference import CodeRange

EPS = 1e-6
DTYPES = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "int8": np.int8,
    "uint4": np.uint8,
}


class Case(NamedTuple):
    rows: int = 5
    heads: tuple[int, int] = (4, 2)
    sizes: tuple[int, int] = (64, 64)
    half: int = 32
    interleaved: bool = False
    norms: bool = False
    plus_one: bool = False


CASES = [
    Case(),
    Case(rows=0),
    Case(rows=1, heads=(7, 1), sizes=(128, 80)),
    Case(half=0),
    Case(half=7, interleaved=True, sizes=(20, 12)),
    Case(half=8, norms=True),
    Case(interleaved=True, norms=True, plus_one=True),
    Case(rows=13, heads=(3, 3), sizes=(6, 2), half=3),
]


def compiled_kinds():
    """All kinds; each costs seconds of compilation, so a quick run sees floats and codes once."""
    quick = ("bfloat16", "int8")
    return [pytest.param(k, marks=[] if k in quick else [pytest.mark.slow]) for k in DTYPES]


@pytest.fixture(scope="module", params=compiled_kinds())
def kernel(request):
    kind = ELEMENTS[request.param]

    @njit
    def run(parts, heads, rotary, spans):
        for part in range(parts):
            rope_append(kind, part, parts, heads, rotary, spans)

    return request.param, run


@pytest.mark.parametrize("case", CASES, ids=str)
def test_heads_are_normalised_turned_and_written_where_the_rows_belong(kernel, case):
    kind, run = kernel
    rng = np.random.default_rng(3)
    (heads, kv_heads), (key_size, value_size) = case.heads, case.sizes
    widths = (heads * key_size, kv_heads * key_size, kv_heads * value_size)
    rows = rng.standard_normal((case.rows, sum(widths) + 5)).astype(np.float32)
    before = rows.copy()
    starts = np.cumsum([0, *widths])
    angles = rng.standard_normal((case.rows, case.half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    norms = rng.standard_normal((2, key_size)).astype(np.float32)
    slots = rng.permutation(4 * 8)[: case.rows]
    span, place = (part.astype(np.int32) for part in np.divmod(slots, 8))
    span[1:2] = -1  # a row that fills up a batch
    keys, key_scales = cache(kind, (4, 8, kv_heads, key_size))
    values, value_scales = cache(kind, (4, 8, kv_heads, value_size))

    run(
        3,
        Heads(
            *(column for start in starts[:3] for column in (at(rows, 4 * start), rows.strides[0])),
            *(case.rows, heads, at(span), at(place)),
        ),
        Rotary(
            *((at(cos), at(sin)) if case.half else (0, 0)),
            *(case.half, case.interleaved),
            *(at(norms), at(norms, norms.strides[0])) if case.norms else (0, 0),
            *(np.float32(EPS), case.plus_one),
        ),
        Spans(
            *(place_of(array) for array in (keys, values, key_scales, value_scales)),
            *(8, kv_heads, key_size, value_size),
        ),
    )

    query, key, value = (
        before[:, start : start + width].reshape(case.rows, width // size, size).astype(float)
        for start, width, size in zip(
            starts, widths, (key_size, key_size, value_size), strict=False
        )
    )
    if case.norms:
        query = op_reference.rms_norm(query, norms[0].astype(float), EPS, case.plus_one)
        key = op_reference.rms_norm(key, norms[1].astype(float), EPS, case.plus_one)
    style = "interleaved" if case.interleaved else "half"
    turned = [
        op_reference.rotate(x, cos.astype(float), sin.astype(float), style) for x in (query, key)
    ]
    got = rows[:, : widths[0]].reshape(query.shape)
    np.testing.assert_allclose(got, turned[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(rows[:, starts[2] :], before[:, starts[2] :])
    written = span >= 0
    for cached, scales, truth in ((keys, key_scales, turned[1]), (values, value_scales, value)):
        check(kind, cached[span, place][written], scales, (span, place), written, truth[written])
        untouched = np.ones((4, 8), bool)
        untouched[span[written], place[written]] = False
        poison = cache(kind, cached.shape, packed=True)[0]
        assert cached[untouched].tobytes() == poison[untouched].tobytes()


def check(kind, got, scales, place, written, truth):
    """Numbers within rounding; codes within one, where rounding decides, of those of the truth."""
    if not truth.size:
        return
    if kind not in ("int8", "uint4"):
        error = {"float32": 1e-5, "float16": 2**-10, "bfloat16": 2**-8}[kind]
        np.testing.assert_allclose(got.astype(float), truth, rtol=error, atol=2e-6)
        return
    codes = CodeRange.INT8 if kind == "int8" else CodeRange.UINT4
    expected = op_reference.quantize_cache(truth, codes)
    mine = scales[place][written]
    np.testing.assert_allclose(mine[..., 1:], expected.scale, rtol=1e-5)
    assert (np.abs(mine[..., :1] - expected.zero) <= 1).all()
    got = got if kind == "int8" else op_reference.unpack_nibbles(got)
    stands_for = (got - mine[..., :1].astype(float)) * mine[..., 1:]
    assert (np.abs(stands_for - truth) <= 1.01 * mine[..., 1:]).all()
    assert np.mean(got != expected.codes) < 0.02


def cache(kind, shape, packed=False):
    """Poisoned spans of a kind, and their scales."""
    if kind == "uint4" and not packed:
        shape = (*shape[:3], shape[3] // 2)
    poison = 77 if kind in ("int8", "uint4") else np.nan
    scales = np.full((*shape[:3], 2), np.nan, np.float32) if kind in ("int8", "uint4") else None
    return np.full(shape, poison, DTYPES[kind]), scales


def place_of(array):
    return Place(0, 0, 0, 0) if array is None else Place(at(array), *array.strides[:3])


def at(array, offset=0):
    return int(array.ctypes.data + offset)
