"""Norms against their definition; those that need no GPU come first."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import (
    DeviceError,
    DTypeError,
    ShapeError,
    captured,
    get_gpu,
    new_stream,
)
from spaninfer_kernels_cuda import norm
from spaninfer_op_reference import (
    layer_norm,
    quantize_fp8,
    quantize_rows,
    relative_error,
    rms_norm,
    tolerance,
)

EPS = 1e-6
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def test_the_variant_carries_the_options_and_the_division():
    variant = norm.variant_for(norm.NormOptions("layer", residual=True), 4096, ml_dtypes.bfloat16)

    assert str(variant) == (
        "norm_rows[BIAS=0 LAYER=1 PACKS=1 RESIDUAL=1 T=bfloat16 THREADS=512 VECTOR=8]"
    )
    assert "sm_75" not in variant.architectures


def test_types_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="int8"):
        norm.variant_for(norm.NormOptions("rms"), 4096, np.int8)


def test_arrays_in_host_memory_are_refused():
    x, weight = np.zeros((3, 64), np.float32), np.zeros(64, np.float32)

    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        norm.rms_norm(x, weight, eps=EPS)


def test_arguments_that_do_not_fit_are_named():
    x, weight = np.zeros((3, 64), np.float32), np.zeros(65, np.float32)

    with pytest.raises(ShapeError, match="weight: C is 65, but x has C = 64"):
        norm.rms_norm(x, weight, eps=EPS)
    with pytest.raises(DTypeError, match="weight holds float16, but the kernel needs float32"):
        norm.rms_norm(x, weight[:64].astype(np.float16), eps=EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(
    ("rows", "channels"),
    [(1, 1), (3, 7), (1, 64), (1009, 128), (5, 1001), (17, 4096), (3, 5120), (2, 16_384)],
)
@pytest.mark.parametrize("with_residual", [False, True], ids=["alone", "residual"])
def test_rms_norm_is_its_definition(on_gpu, dtype, rows, channels, with_residual):
    x, residual, weight, _ = arguments(rows, channels, dtype)
    added = on_gpu.put(residual) if with_residual else None

    y = norm.rms_norm(on_gpu.put(x), on_gpu.put(weight), eps=EPS, residual=added, plus_one=True)

    total = (wide(x) + wide(residual)).astype(dtype) if with_residual else x
    assert near(on_gpu.get(y), rms_norm(wide(total), wide(weight), EPS, plus_one=True), dtype)
    if with_residual:
        assert near(on_gpu.get(added), wide(total), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(
    ("rows", "channels"), [(1, 2), (7, 64), (2, 1001), (1009, 768), (3, 8192), (2, 12_288)]
)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_layer_norm_is_its_definition(on_gpu, dtype, rows, channels, with_bias):
    x, residual, weight, bias = arguments(rows, channels, dtype)
    added, shift = on_gpu.put(residual), on_gpu.put(bias) if with_bias else None

    y = norm.layer_norm(on_gpu.put(x), on_gpu.put(weight), shift, eps=EPS, residual=added)

    total = (wide(x) + wide(residual)).astype(dtype)
    expected = layer_norm(wide(total), wide(weight), wide(bias) if with_bias else None, EPS)
    assert near(on_gpu.get(y), expected, dtype)
    assert near(on_gpu.get(added), wide(total), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("code", ["int8", "fp8"])
@pytest.mark.parametrize(
    ("rows", "channels"),
    [(1, 64), (1009, 128), (5, 1001), (17, 4096), (1024, 64), (1100, 3584), (1024, 8192)],
)
@pytest.mark.parametrize("with_residual", [False, True], ids=["alone", "residual"])
def test_a_quantised_norm_is_that_of_its_definition(
    on_gpu, dtype, code, rows, channels, with_residual
):
    x, residual, weight, _ = arguments(rows, channels, dtype)
    added = on_gpu.put(residual) if with_residual else None

    codes, scales = norm.rms_norm_quantized(
        on_gpu.put(x), on_gpu.put(weight), code, eps=EPS, residual=added
    )

    total = (wide(x) + wide(residual)).astype(dtype) if with_residual else x
    y = rms_norm(wide(total), wide(weight), EPS).astype(np.float32)
    expected, scale = {"int8": quantize_rows, "fp8": quantize_fp8}[code](y)
    got = wide(on_gpu.get(codes))
    # What float32 sums differ by moves few codes, and those to a neighbour.
    step = 1 if code == "int8" else np.maximum(np.abs(expected) / 8, 2.0**-9)
    assert (np.abs(got - expected) <= 1.001 * step).all()
    assert (got != expected).mean() < 0.01
    np.testing.assert_allclose(on_gpu.get(scales), scale[:, 0], rtol=1e-5)
    if with_residual:
        assert near(on_gpu.get(added), wide(total), dtype)


@pytest.mark.gpu
def test_no_bit_of_an_invariant_norm_in_codes_depends_on_how_many_rows_there_are(on_gpu):
    x, _, weight, _ = arguments(1100, 3584, ml_dtypes.bfloat16)
    options, got = norm.NormOptions("rms", code="fp8"), []
    for rows in (1, 1100):
        step = norm.prepare(
            options, rows=rows, channels=3584, dtype=x.dtype, gpu=get_gpu(), batch_invariant=True
        )
        given, weights = on_gpu.put(x[:rows]), on_gpu.put(weight)
        codes = on_gpu.put(np.zeros((rows, 3584), np.uint8))
        scales = on_gpu.put(np.zeros(rows, np.float32))
        on_gpu.wait()
        with get_gpu().current(), new_stream() as stream:
            step.launch(given, weights, out=codes, scales=scales, eps=EPS, stream=stream)
        got.append((on_gpu.get(codes)[0], on_gpu.get(scales)[0]))

    (alone, scale), (beside, scale_beside) = got
    np.testing.assert_array_equal(alone, beside)
    assert scale == scale_beside


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_prepared_layer_norm_may_be_quantised_too(on_gpu, dtype):
    x, residual, weight, bias = arguments(7, 1001, dtype)
    options = norm.NormOptions("layer", residual=True, bias=True, code="int8")
    step = norm.prepare(options, rows=7, channels=1001, dtype=dtype, gpu=get_gpu())
    codes, scales = on_gpu.put(np.zeros(x.shape, np.int8)), on_gpu.put(np.zeros(7, np.float32))
    given, scale, added, shift = map(on_gpu.put, (x, weight, residual, bias))
    on_gpu.wait()

    with get_gpu().current(), new_stream() as stream:
        step.launch(
            *(given, scale),
            **dict(out=codes, scales=scales, residual=added, bias=shift, eps=EPS, stream=stream),
        )

    total = wide((wide(x) + wide(residual)).astype(dtype))
    y = layer_norm(total, wide(weight), wide(bias), EPS)
    back = wide(on_gpu.get(codes)) * on_gpu.get(scales)[:, None]
    assert (np.abs(back - y).max(1) <= 0.51 * on_gpu.get(scales)).all()


@pytest.mark.gpu
def test_outputs_of_the_caller_are_written_whole_and_nothing_else(on_gpu):
    x, _, weight, _ = arguments(5, 320, np.float16)
    out = on_gpu.put(np.full((7, 320), np.nan, np.float16))

    norm.rms_norm(on_gpu.put(x), on_gpu.put(weight), eps=EPS, out=out[1:6])

    got = on_gpu.get(out)
    assert near(got[1:6], rms_norm(wide(x), wide(weight), EPS), np.float16)
    assert np.isnan(got[[0, 6]]).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    x, weight = np.zeros((0, 64), np.float16), np.zeros(64, np.float16)

    y = norm.rms_norm(on_gpu.put(x), on_gpu.put(weight), eps=EPS)

    assert on_gpu.get(y).shape == (0, 64)


@pytest.mark.gpu
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu = get_gpu()
    step = norm.prepare(norm.NormOptions("rms"), rows=9, channels=640, dtype=np.float16, gpu=gpu)
    _, _, weight, _ = arguments(9, 640, np.float16)
    given, scale = on_gpu.put(np.zeros((9, 640), np.float16)), on_gpu.put(weight)
    out = on_gpu.put(np.zeros((9, 640), np.float16))

    def launch(stream, _):
        step.launch(given, scale, out=out, eps=EPS, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in range(3):
            x = arguments(9, 640, np.float16, seed)[0]
            given[:] = on_gpu.put(x)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            assert near(on_gpu.get(out), rms_norm(wide(x), wide(weight), EPS), np.float16)


def arguments(rows, channels, dtype, seed=0):
    """x, residual, weight and bias of a norm."""
    draw = np.random.default_rng(seed)
    shapes = ((rows, channels), (rows, channels), (channels,), (channels,))
    spreads = (3, 3, 0.2, 0.2)
    return tuple(
        (spread * draw.standard_normal(shape) + 1).astype(dtype)
        for spread, shape in zip(spreads, shapes, strict=True)
    )


def wide(array):
    return array.astype(np.float64)


def near(actual, expected, dtype):
    return relative_error(wide(actual), expected) <= tolerance(np.dtype(dtype).name)


def test_form_is_the_old_name_of_norm_options():
    with pytest.warns(DeprecationWarning, match=r"norm\.Form is now .*norm\.NormOptions"):
        assert norm.Form is norm.NormOptions
