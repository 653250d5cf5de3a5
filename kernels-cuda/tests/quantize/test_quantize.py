"""Quantisation of rows against its definition; the tests that need no GPU come first."""

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
from spaninfer_kernels_cuda import quantize
from spaninfer_op_reference import quantize_fp8, quantize_rows

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SIZES = [(1, 1), (3, 7), (1009, 96), (5, 1001), (17, 4096), (3, 5120), (2, 16_384)]
DEFINITIONS = {"int8": quantize_rows, "fp8": quantize_fp8}


def test_the_variant_carries_the_code_and_the_division():
    variant = quantize.variant_for(quantize.QuantizeOptions("fp8"), 4096, ml_dtypes.bfloat16)

    assert str(variant) == (
        "quantize_rows[ACT= CODE=Fp8 GATED=0 GROUP=0 PACKS=1 T=bfloat16 THREADS=512 VECTOR=8]"
    )


def test_codes_without_a_kernel_are_refused():
    with pytest.raises(DTypeError, match="no codes 'int4'; there are int8, fp8"):
        quantize.variant_for(quantize.QuantizeOptions("int4"), 4096, np.float16)
    with pytest.raises(ShapeError, match="no activation 'swish'; there are silu, gelu"):
        quantize.variant_for(quantize.QuantizeOptions("fp8", gate="swish"), 4096, np.float16)


def test_groups_without_a_kernel_are_refused():
    with pytest.raises(ShapeError, match="no groups of 100 codes; there are 32, 64, 128"):
        quantize.variant_for(quantize.QuantizeOptions("fp8", 100), 4096, np.float16)
    with pytest.raises(ShapeError, match="groups of 128 codes in rows loaded by 2; a warp loads"):
        quantize.variant_for(quantize.QuantizeOptions("fp8", 128), 4098, np.float16)


def test_arrays_in_host_memory_are_refused():
    with pytest.raises(DeviceError, match="x lies in cpu memory"):
        quantize.quantize(np.zeros((3, 64), np.float32), "int8")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("code", DEFINITIONS)
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_codes_and_scales_are_their_definition_to_the_bit(on_gpu, dtype, code, rows, channels):
    x = numbers(rows, channels, dtype)

    codes, scales = quantize.quantize(on_gpu.put(x), code)

    check(code, on_gpu.get(codes), on_gpu.get(scales), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("code", DEFINITIONS)
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize(("rows", "channels"), [(3, 64), (5, 1040), (2, 18_944)])
def test_a_group_is_coded_as_a_row_of_its_own(on_gpu, dtype, code, group, rows, channels):
    if dtype == np.float32:
        channels = min(channels, 16_384)  # the longest row of 4 bytes
    x = numbers(rows, channels, dtype)

    codes, scales = quantize.quantize(on_gpu.put(x), code, group=group)

    codes, scales = on_gpu.get(codes), on_gpu.get(scales)
    assert scales.shape == (-(-channels // group), rows)
    for number, first in enumerate(range(0, channels, group)):
        part = slice(first, first + group)
        check(code, codes[:, part], scales[number], x[:, part])


@pytest.mark.gpu
@pytest.mark.parametrize("code", DEFINITIONS)
@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize(("rows", "channels"), [(3, 64), (5, 1040), (2, 18_944)])
def test_a_gate_is_applied_before_rows_are_coded(on_gpu, code, group, rows, channels):
    x = numbers(rows, 2 * channels, np.float16)

    codes, scales = quantize.quantize(on_gpu.put(x), code, group=group, gate="relu")

    gate, up = np.split(x.astype(np.float32), 2, axis=1)
    y = np.maximum(gate, 0) * up  # exact in float32
    codes, scales = on_gpu.get(codes), np.atleast_2d(on_gpu.get(scales))
    width = group or channels
    for number, first in enumerate(range(0, channels, width)):
        part = slice(first, first + width)
        check(code, codes[:, part], scales[number], y[:, part])


@pytest.mark.gpu
@pytest.mark.parametrize("code", DEFINITIONS)
def test_rows_of_zeros_and_of_tiny_and_huge_numbers_have_codes_too(on_gpu, code):
    x = numbers(4, 256, np.float32)
    x[0], x[2], x[3] = 0, 1e-35 * x[2], 1e37 * x[3]

    codes, scales = quantize.quantize(on_gpu.put(x), code)

    check(code, on_gpu.get(codes), on_gpu.get(scales), x)


@pytest.mark.gpu
def test_outputs_of_the_caller_are_written_whole_and_nothing_else(on_gpu):
    x = numbers(5, 320, np.float16)
    codes, scales = on_gpu.put(np.full((7, 320), 99, np.int8)), on_gpu.put(np.zeros(7, np.float32))

    quantize.quantize(on_gpu.put(x), "int8", out=(codes[1:6], scales[1:6]))

    codes, scales = on_gpu.get(codes), on_gpu.get(scales)
    check("int8", codes[1:6], scales[1:6], x)
    assert (codes[[0, 6]] == 99).all()
    assert (scales[[0, 6]] == 0).all()


@pytest.mark.gpu
def test_no_rows_are_no_launch(on_gpu):
    codes, scales = quantize.quantize(on_gpu.put(np.zeros((0, 64), np.float16)), "int8")

    assert on_gpu.get(codes).shape == (0, 64)
    assert on_gpu.get(scales).shape == (0,)


@pytest.mark.gpu
def test_prepared_and_captured_it_runs_on_whatever_the_input_then_holds(on_gpu):
    gpu = get_gpu()
    step = quantize.prepare(
        quantize.QuantizeOptions("int8"), rows=9, channels=640, dtype=np.float16, gpu=gpu
    )
    given = on_gpu.put(np.zeros((9, 640), np.float16))
    out = on_gpu.put(np.zeros((9, 640), np.int8)), on_gpu.put(np.zeros(9, np.float32))

    def launch(stream, _):
        step.launch(given, out=out, stream=stream)

    with gpu.current(), new_stream() as stream, captured(stream, launch) as replay:
        for seed in range(3):
            x = numbers(9, 640, np.float16, seed)
            given[:] = on_gpu.put(x)
            on_gpu.wait()
            replay()
            on_gpu.wait()

            check("int8", *map(on_gpu.get, out), x)


def numbers(rows, channels, dtype, seed=0):
    return (3 * np.random.default_rng(seed).standard_normal((rows, channels))).astype(dtype)


def check(code, codes, scales, x):
    """Every code and scale equals its definition in float32."""
    expected, scale = DEFINITIONS[code](x.astype(np.float32))
    np.testing.assert_array_equal(scales, scale[:, 0])
    np.testing.assert_array_equal(codes.astype(np.float32), expected)
