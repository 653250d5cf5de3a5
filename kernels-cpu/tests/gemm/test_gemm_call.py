"""GEMMs as calls of a script: strided inputs, with and without a residual."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from expansion import expands, most_few
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Format, linear, pack, pack_stack, unpack
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm.gemm_call import Epilogue, Gemm, _chunks
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.runtime.call import LOGITS, Matrix, Script
from spaninfer_kernels_cpu.runtime.numa import shares
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool
from spaninfer_op_reference import ACTIVATIONS

RNG = np.random.default_rng(0)
FORMATS = [
    Format("float32"),
    Format("bfloat16"),
    *(Format(kind, group) for kind in ("int8", "int4") for group in (None, 32)),
]


def _rows(array: NDArray[np.float32]) -> Matrix:
    return Matrix(array.ctypes.data, array.strides[0])


def _floats(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape, np.float32)


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 8, 9, 14, 200, 401])
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("channels", [130, 129])
def test_a_script_multiplies_like_linear(format: Format, rows: int, channels: int) -> None:
    weight, bias, x = pack(_floats(75, channels), format), _floats(75), _floats(rows, channels)
    expected = np.empty((rows, 75), np.float32)
    linear(x, weight, out=expected, bias=bias)
    among = np.full((rows, channels + 9), np.nan, np.float32)
    among[:, 4:-5] = x
    out = np.full((rows, 80), np.nan, np.float32)
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight).calls(
        _rows(among[:, 4:]),
        out=_rows(out),
        scratch=scratch.ctypes.data,
        epilogue=Epilogue(bias),
    )
    shared_thread_pool().run(Script(calls), [rows])

    np.testing.assert_array_equal(out[:, :75], expected)
    assert np.isnan(out[:, 75:]).all()


@pytest.mark.parametrize("rows", [5, 14, 201])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_gemm_is_added_to_rows_times_a_scale(format: Format, rows: int) -> None:
    weight, x, residual = pack(_floats(70, 64), format), _floats(rows, 64), _floats(rows, 70)
    expected = np.empty((rows, 70), np.float32)
    linear(x, weight, out=expected)
    out = residual.copy()
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight).calls(
        _rows(x),
        out=_rows(out),
        scratch=scratch.ctypes.data,
        epilogue=Epilogue(residual=_rows(out), scale=0.25),
        count=LOGITS,
    )
    shared_thread_pool().run(Script(calls), [9, rows])

    np.testing.assert_allclose(out, residual + 0.25 * expected, rtol=1e-6, atol=1e-6)


# A kernel has one activation beside products without: other tests have these compiled as well.
ACTIVATED = [
    ("gelu", Format("float32")),
    *(("relu", format) for format in FORMATS[1:]),
    ("silu", Format("int6", 32)),
]


@pytest.mark.parametrize("rows", [1, 5, 14, 201])
@pytest.mark.parametrize(("act", "format"), ACTIVATED, ids=str)
def test_outputs_go_through_an_activation(act: str, format: Format, rows: int) -> None:
    weight, bias, x = pack(_floats(70, 64), format), _floats(70), _floats(rows, 64)
    plain = np.empty((rows, 70), np.float32)
    linear(x, weight, out=plain, bias=bias)
    out = np.empty((rows, 70), np.float32)
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight).calls(
        _rows(x),
        out=_rows(out),
        scratch=scratch.ctypes.data,
        epilogue=Epilogue(bias, activation=act),
    )
    shared_thread_pool().run(Script(calls), [rows])

    np.testing.assert_allclose(out, ACTIVATIONS[act](plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("coarse", [False, True])
def test_a_coarse_activation_is_near_the_other_one(coarse: bool) -> None:
    """Where one exists: of those that have none it is the same."""
    rows = 9
    weight, bias, x = pack(_floats(70, 64), FORMATS[3]), _floats(70), _floats(rows, 64)
    plain = np.empty((rows, 70), np.float32)
    linear(x, weight, out=plain, bias=bias)
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    for act in ("gelu", "relu"):
        out = np.full((rows, 70), np.nan, np.float32)
        calls = Gemm(weight).calls(
            _rows(x),
            out=_rows(out),
            scratch=scratch.ctypes.data,
            epilogue=Epilogue(bias, activation=act, coarse=coarse),
        )
        shared_thread_pool().run(Script(calls), [rows])

        error = np.abs(out - ACTIVATIONS[act](plain.astype(np.float64))).max()
        assert error < 3e-5
        assert (error > 3e-6) == (coarse and act == "gelu")


@pytest.mark.parametrize("channels", [64, 63])
def test_activations_are_rounded_where_the_cpu_multiplies_bfloat16(channels: int) -> None:
    weight, x = pack(_floats(70, channels), Format("bfloat16")), _floats(5, channels)
    out = np.empty((5, 70), np.float32)
    scratch = np.empty(5 * Gemm(weight, rounded=True).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight, rounded=True).calls(_rows(x), out=_rows(out), scratch=scratch.ctypes.data)
    shared_thread_pool().run(Script(calls), [5])

    one, _ = micro_kernels(Format("bfloat16"), rounded=True, level=active_level())
    seen = x.astype(ml_dtypes.bfloat16) if one.channel_bytes == 2 else x
    expected = seen.astype(np.float64) @ unpack(weight).T.astype(np.float64)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 11])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_parts_of_rows_are_multiplied_each_by_a_weight_of_its_own(
    format: Format, rows: int
) -> None:
    heads, channels, outputs = 3, 70, 90
    weight = pack_stack([_floats(heads, outputs, channels)], format)
    x, expected = _floats(rows, heads, channels), np.empty((rows, heads, outputs), np.float32)
    for head in range(heads):
        linear(x[:, head].copy(), weight[head], out=expected[:, head])
    out = np.full((rows, heads * outputs + 1), np.nan, np.float32)
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight).calls(
        _rows(x.reshape(rows, -1)), out=_rows(out), scratch=scratch.ctypes.data
    )
    shared_thread_pool().run(Script(calls), [rows])

    np.testing.assert_array_equal(out[:, :-1], expected.reshape(rows, -1))
    assert np.isnan(out[:, -1]).all()


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("format", [Format("float32"), Format("bfloat16")], ids=str)
def test_long_rows_are_multiplied_in_blocks_each_row_as_if_alone(
    format: Format, rounded: bool
) -> None:
    weight, x = pack(_floats(130, 5504), format), _floats(290, 5504)
    bias, residual = _floats(130), _floats(290, 130)

    together = _added_as_if_alone(Gemm(weight, rounded), x, bias, residual)

    one, _ = micro_kernels(format, rounded=rounded, level=active_level())
    seen = x.astype(ml_dtypes.bfloat16) if one.channel_bytes == 2 else x
    expected = seen.astype(np.float64) @ unpack(weight).T.astype(np.float64) + bias
    np.testing.assert_allclose(together, residual + 0.3 * expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_gemm_is_added_to_each_row_as_if_alone(format: Format) -> None:
    weight, x = pack(_floats(130, 96), format), _floats(290, 96)
    bias, residual, product = _floats(130), _floats(290, 130), np.empty((290, 130), np.float32)

    together = _added_as_if_alone(Gemm(weight), x, bias, residual)

    linear(x, weight, out=product, bias=bias)
    np.testing.assert_allclose(together, residual + 0.3 * product, rtol=1e-5, atol=1e-5)


def _added_as_if_alone(
    gemm: Gemm, x: NDArray[np.float32], bias: NDArray[np.float32], residual: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return residual + 0.3 * (product + bias); fail unless a few rows get the bits of all."""
    scratch = np.empty(len(x) * gemm.scratch_bytes + 1, np.uint8)

    def multiplied(first: int, stop: int) -> NDArray[np.float32]:
        out = residual[first:stop].copy()
        calls = gemm.calls(
            _rows(x[first:stop]),
            out=_rows(out),
            scratch=scratch.ctypes.data,
            epilogue=Epilogue(bias, _rows(out), 0.3),
        )
        shared_thread_pool().run(Script(calls), [stop - first])
        return out

    together = multiplied(0, len(x))
    format = gemm.weight.layout.format
    least = most_few(format) + 1 if expands(format, len(x)) else 1
    for first, stop in ((0, least), (7, 11 + least), (289 - least, 290), (100, 140)):
        np.testing.assert_array_equal(multiplied(first, stop), together[first:stop])
    return together


@pytest.mark.parametrize(("threads", "nodes"), [(1, 1), (8, 1), (8, 2), (3, 2), (6, 3)])
@pytest.mark.parametrize("panels", [1, 2, 14, 97, 2374])
def test_each_node_has_as_many_chunks_and_they_hold_the_panels_that_lie_there(
    panels, threads, nodes
):
    chunks = _chunks(panels, threads, nodes)

    each = (len(chunks) - 1) // nodes
    assert len(chunks) == nodes * each + 1
    assert np.diff(chunks).min() >= 0
    assert np.diff(chunks).max() <= 32  # threads give way to other programs between chunks
    firsts = [(int(chunks[each * n]), int(chunks[each * (n + 1)])) for n in range(nodes)]
    assert tuple(firsts) == shares(panels, nodes)


@pytest.mark.parametrize("rows", [1, 3, 8, 200])
@pytest.mark.parametrize(
    "format", [Format("int8", 32), Format("int4", 32), Format("bfloat16"), Format("float32")]
)
@pytest.mark.parametrize("act", ["silu", "relu"])
def test_a_gated_gemm_is_the_activation_of_one_half_times_the_other(rows, format, act):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 96), np.float32)
    weight = pack(rng.standard_normal((2 * 192, 96), np.float32), format)
    both = np.empty((rows, 2 * 192), np.float32)
    linear(x, weight, out=both)
    out = np.full((rows, 192 + 3), np.nan, np.float32)
    scratch = np.empty(rows * Gemm(weight).scratch_bytes + 1, np.uint8)

    calls = Gemm(weight).gated_calls(_rows(x), act, out=_rows(out), scratch=scratch.ctypes.data)
    shared_thread_pool().run(Script(calls), [rows])

    gate, up = both[:, :192].astype(np.float64), both[:, 192:]
    expected = (gate / (1 + np.exp(-gate)) if act == "silu" else np.maximum(gate, 0)) * up
    np.testing.assert_allclose(out[:, :192], expected, rtol=1e-5, atol=1e-6)
    assert np.isnan(out[:, 192:]).all()


def test_only_whole_panels_of_gates_and_factors_are_gated():
    numbers = np.ones((256, 64), np.float32)

    assert Gemm(pack(numbers, Format("int8", 32))).can_gate
    assert not Gemm(pack(numbers[:192], Format("int8", 32))).can_gate
