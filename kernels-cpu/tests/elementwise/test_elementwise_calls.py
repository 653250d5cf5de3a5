"""Operators on rows and heads as calls, against their definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from code_forms import FORMS, PAIR, made, meant
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Format, FormatError, pack, pack_codes
from spaninfer_kernels_cpu.elementwise import (
    formula_call,
    gather_call,
    norm_call,
    rope_call,
    scale_call,
)
from spaninfer_kernels_cpu.elementwise.activations import COARSE_ACTIVATIONS
from spaninfer_kernels_cpu.quantisation import coded_rows_call
from spaninfer_kernels_cpu.runtime.call import Call, Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

RNG = np.random.default_rng(0)
T, W = 70, 9


def _among_others(*shape: int) -> NDArray[np.float32]:
    """Random rows that are a part of longer ones."""
    wide = RNG.standard_normal((shape[0], 11 + int(np.prod(shape[1:]))), np.float32)
    return wide[:, 4:-7]


def _rows(array: NDArray[np.float32]) -> Matrix:
    return Matrix(array.ctypes.data, array.strides[0])


def _run(script: Sequence[Call]) -> None:
    shared_thread_pool().run(Script(script), [T, W])


def _place(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the word that says where an array is."""
    return np.array([array.ctypes.data], np.int64)


def _check(out: NDArray[np.float32], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(out, expected.reshape(out.shape), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_embeddings_are_rows_of_a_table_in_its_own_format(dtype: Any) -> None:
    table = RNG.standard_normal((40, 50)).astype(dtype)
    ids, out = RNG.integers(0, 37, T).astype(np.int32), _among_others(T, 50)
    place = _place(ids)

    _run(
        [gather_call.embed_call(table, ids=place.ctypes.data, out=_rows(out), offset=3, scale=0.5)]
    )

    np.testing.assert_array_equal(out, table[ids + 3].astype(np.float32) * np.float32(0.5))


def test_embeddings_may_be_added_to_rows() -> None:
    table = RNG.standard_normal((2, 300), np.float32)
    ids, before = RNG.integers(0, 2, T).astype(np.int32), _among_others(T, 300)
    place, out = _place(ids), _among_others(T, 300)

    _run([gather_call.embed_call(table, ids=place.ctypes.data, out=_rows(out), onto=_rows(before))])

    np.testing.assert_array_equal(out, before + table[ids])


SINGLE = [name for name, form in FORMS.items() if form.codes.bits != PAIR]


@pytest.mark.parametrize("channels", [256, 300, 512])
@pytest.mark.parametrize("name", SINGLE)
def test_embeddings_are_rows_of_packed_codes_to_the_bit(name: str, channels: int) -> None:
    codes = made(name, 1, 150, channels)
    table, numbers = pack_codes([codes], FORMS[name]), meant(name, codes)[0].astype(np.float32)
    ids, out = RNG.integers(0, 147, T).astype(np.int32), _among_others(T, channels)
    place = _place(ids)

    call = coded_rows_call.embed_codes_call(
        table, ids=place.ctypes.data, out=_rows(out), offset=3, scale=0.3
    )
    _run([call])

    np.testing.assert_array_equal(out, numbers[ids + 3] * np.float32(0.3))


def test_rows_are_not_read_from_pairs() -> None:
    name = "pairs_g32"
    table = pack_codes([made(name, 1, 64, 64)], FORMS[name])

    with pytest.raises(FormatError, match="codes of one number"):
        coded_rows_call.embed_codes_call(table, ids=0, out=Matrix(0, 0))


def test_rows_are_not_read_from_codes_of_16_bits() -> None:
    table = pack(np.ones((64, 64), np.float32), Format("w13a13", 64))

    with pytest.raises(FormatError, match="of at most 8 bits"):
        coded_rows_call.embed_codes_call(table, ids=0, out=Matrix(0, 0))


def test_logit_positions_are_gathered() -> None:
    x, out = _among_others(T, 30), _among_others(W, 30)
    wanted = RNG.integers(0, T, W).astype(np.int32)
    place = _place(wanted)

    _run(
        [
            gather_call.gather_rows_call(
                _rows(x), indices=place.ctypes.data, out=_rows(out), channels=30
            )
        ]
    )

    np.testing.assert_array_equal(out, x[wanted])


def test_columns_of_every_part_are_copied() -> None:
    x, out = _among_others(T, 4 * 10), np.zeros((T, 4 * 7), np.float32)

    _run(
        [
            gather_call.copy_call(
                gather_call.Columns(_rows(x), 10, 3),
                into=gather_call.Columns(_rows(out), 7, 2),
                parts=4,
                width=5,
            )
        ]
    )

    expected = np.zeros((T, 4, 7), np.float32)
    expected[:, :, 2:] = x.reshape(T, 4, 10)[:, :, 3:8]
    np.testing.assert_array_equal(out, expected.reshape(T, 28))


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize(("parts", "channels"), [(1, 300), (3, 40)])
def test_norms_are_of_every_part_of_a_row(parts: int, channels: int, plus_one: bool) -> None:
    x, out, other = (_among_others(T, parts * channels) for _ in range(3))
    weight, bias = RNG.standard_normal((2, channels), np.float32)

    _run(
        [
            norm_call.rms_norm_call(
                _rows(x), norm_call.RmsNorm(weight, 1e-5, plus_one), out=_rows(out), parts=parts
            ),
            norm_call.layer_norm_call(
                _rows(x), norm_call.LayerNorm(weight, bias, 1e-5), out=_rows(other), parts=parts
            ),
        ]
    )

    exact = x.reshape(T, parts, channels).astype(np.float64)
    _check(out, definition.rms_norm(exact, weight, 1e-5, plus_one=plus_one))
    _check(other, definition.layer_norm(exact, weight, bias, 1e-5))

    norm = norm_call.RmsNorm(weight, 1e-5, plus_one)
    _run([norm_call.rms_norm_call(_rows(x), norm, out=_rows(x), parts=parts)])

    np.testing.assert_array_equal(x, out)


def test_the_variance_of_numbers_far_from_0_is_not_lost() -> None:
    x, out = _among_others(T, 300), _among_others(T, 300)
    x += 100
    weight = np.ones(300, np.float32)

    norm = norm_call.LayerNorm(weight, None, 1e-5)
    _run([norm_call.layer_norm_call(_rows(x), norm, out=_rows(out))])

    expected = definition.layer_norm(x.astype(np.float64), weight, None, 1e-5)
    np.testing.assert_allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize("channels", [24, 5000])
@pytest.mark.parametrize("act", definition.ACTIVATIONS)
def test_gates_and_activations_are_computed_as_defined(act: str, channels: int) -> None:
    x, y, gated, plain = (_among_others(T, channels) for _ in range(4))
    rows = _rows(x), _rows(y)

    _run(
        [
            formula_call.formula_call(
                formula_call.gate_formula(act), rows, out=_rows(gated), channels=channels
            ),
            formula_call.formula_call(
                formula_call.activation_formula(act), rows, out=_rows(plain), channels=channels
            ),
        ]
    )

    exact = x.astype(np.float64), y.astype(np.float64)
    _check(gated, definition.gated(*exact, act))
    _check(plain, definition.ACTIVATIONS[act](exact[0]))


@pytest.mark.parametrize("act", definition.ACTIVATIONS)
def test_activations_are_right_to_the_last_places_far_into_both_tails(act: str) -> None:
    x = np.linspace(-200, 200, T * 500, dtype=np.float32).reshape(T, 500)
    y, out = np.ones_like(x), np.full_like(x, np.nan)

    formula = formula_call.gate_formula(act)
    _run([formula_call.formula_call(formula, (_rows(x), _rows(y)), out=_rows(out), channels=500)])

    expected = definition.ACTIVATIONS[act](x.astype(np.float64))
    size = np.maximum(np.maximum(1, np.abs(x)), np.abs(expected))  # a square is larger than x
    assert (np.abs(out - expected) <= 4e-7 * size + 1e-30).all()


def test_gelu_is_right_where_its_tail_matters_and_at_infinity() -> None:
    x = np.linspace(-11, 11, T * 64, dtype=np.float32).reshape(T, 64)
    x[-1, -5:] = -np.inf, np.inf, -1e30, 1e30, np.nan
    out = np.zeros_like(x)

    formula = formula_call.activation_formula("gelu")
    _run([formula_call.formula_call(formula, (_rows(x),), out=_rows(out), channels=64)])

    got, numbers = out.ravel()[:-5], x.ravel()[:-5].tolist()
    exact = np.array([each / 2 * math.erfc(-each / 2**0.5) for each in numbers])
    assert (np.abs(got - exact) <= 1.2e-7 * np.maximum(0.5, np.abs(exact))).all()
    np.testing.assert_allclose(out[-1, -5:], [0, np.inf, 0, 1e30, np.nan], atol=1e-20)


def test_coarse_gelu_is_near_and_right_far_out() -> None:
    x = np.linspace(-11, 11, T * 64, dtype=np.float32).reshape(T, 64)
    x[-1, -5:] = -np.inf, np.inf, -1e30, 1e30, np.nan
    out = np.zeros_like(x)

    formula = formula_call.Formula("activation", COARSE_ACTIVATIONS["gelu"])
    _run([formula_call.formula_call(formula, (_rows(x),), out=_rows(out), channels=64)])

    got, numbers = out.ravel()[:-5], x.ravel()[:-5].tolist()
    exact = np.array([each / 2 * math.erfc(-each / 2**0.5) for each in numbers])
    np.testing.assert_allclose(got, exact, rtol=1e-7, atol=2e-5)
    np.testing.assert_allclose(out[-1, -5:], [0, np.inf, 0, 1e30, np.nan], atol=2e-5)


def test_gates_of_rows_and_factors_of_positions_are_as_defined() -> None:
    x, gated, grown, stepped = (_among_others(T, 3 * 8) for _ in range(4))
    gate = _among_others(T, 1)
    places = RNG.integers(0, 3000, T).astype(np.int32)
    place = _place(places)

    _run(
        [
            scale_call.sigmoid_gate_call(_rows(x), _rows(gate), out=_rows(gated), channels=24),
            scale_call.logn_call(
                _rows(x), out=_rows(grown), channels=24, position=place.ctypes.data, base=512
            ),
            scale_call.llama4_scale_call(
                _rows(x),
                out=_rows(stepped),
                channels=24,
                position=place.ctypes.data,
                growth=scale_call.Llama4Growth(0.1, 64, 1),
            ),
        ]
    )

    exact = x.astype(np.float64)
    _check(gated, exact * definition.sigmoid(gate.astype(np.float64)))
    _check(grown, definition.logn(exact.reshape(T, 3, 8), places, 512))
    _check(stepped, definition.llama4_scale(exact.reshape(T, 3, 8), places, 0.1, 64, 1))


def test_sums_scales_and_softcaps_are_computed_as_defined() -> None:
    x, y, added, scaled, capped = (_among_others(T, 33) for _ in range(5))
    rows = _rows(x), _rows(y)

    _run(
        [
            formula_call.formula_call(
                formula_call.ADD, rows, out=_rows(added), channels=33, number=0.3
            ),
            formula_call.formula_call(
                formula_call.SCALE, rows, out=_rows(scaled), channels=33, number=0.3
            ),
            formula_call.formula_call(
                formula_call.SOFTCAP, rows, out=_rows(capped), channels=33, number=1.5
            ),
        ]
    )

    _check(added, x + y.astype(np.float64) * 0.3)
    _check(scaled, x.astype(np.float64) * 0.3)
    _check(capped, definition.softcap(x.astype(np.float64), 1.5))


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("half", "size"), [(8, 16), (5, 16), (24, 50)])
def test_heads_are_rotated_as_defined(style: Any, half: int, size: int) -> None:
    """In place, too."""
    x, out = _among_others(T, 3 * size), _among_others(T, 3 * size)
    exact = x.reshape(T, 3, size).astype(np.float64)
    angles = RNG.uniform(0, 6, (T, half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    places = _place(cos), _place(sin)
    by = rope_call.RopeAngles(
        *(place.ctypes.data for place in places), half, style == "interleaved"
    )

    for to in (out, x):
        _run([rope_call.rope_call(_rows(x), by, out=_rows(to), heads=3, size=size)])

    _check(out, definition.rotate(exact, cos, sin, style))
    np.testing.assert_array_equal(x, out)
