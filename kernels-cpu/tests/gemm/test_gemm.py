"""GEMMs with packed weights against the definition in float64.

`test_isa_level.py` runs this file again under every set of instructions that the CPU has.
"""

import ctypes
import mmap
import multiprocessing
import sys

import ml_dtypes
import numpy as np
import pytest
import spaninfer_op_reference as definition
from expansion import expands, may_lack, most_few, rows_seen
from spaninfer_kernels_cpu import (
    DTypeError,
    Format,
    Packed,
    ShapeError,
    ThreadPool,
    linear,
    pack,
    unpack,
)
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm import gemm as module
from spaninfer_kernels_cpu.gemm import gemm_call
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_op_reference import (
    dequantize_weight,
    grid_format,
    quantize_rows,
    quantize_to_grid,
    quantize_to_table,
    table_format,
)

NAN = np.float32(np.nan)

FORMATS = [
    Format("float32"),
    Format("bfloat16"),
    *(Format("int8", group) for group in (None, 32, 64, 128)),
    *(Format("int4", group) for group in (None, 32, 64, 128)),
    Format("int3.5", 32),
    *(Format("w7a7", group) for group in (None, 32)),
    *(Format("w13a13", group) for group in (32, 128)),
]
SIZES = [(1, 1), (16, 64), (17, 33), (64, 128), (65, 7), (100, 250), (192, 896), (130, 1031)]
TOKENS = [1, 2, 5, 13, 64]


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_it_computes_the_definition(format, size):
    outputs, channels = size
    rng = np.random.default_rng(outputs)
    weight = pack(rng.standard_normal(size, np.float32), format)
    bias = rng.standard_normal(outputs, np.float32)

    for num_rows in TOKENS:
        x = rng.standard_normal((num_rows, channels), np.float32)
        out = np.full((num_rows, outputs), NAN)
        linear(x, weight, out=out, bias=bias)

        assert_close(out, x, weight, bias)


@pytest.mark.parametrize("size", [(67, 333), (130, 1031)], ids=str)
@pytest.mark.parametrize(
    ("kind", "group"), [("int3.5", 32), ("iq4_nl", 32), ("iq4_nl", 128), ("iq4_nl", None)]
)
def test_levels_are_within_a_256th_of_weights_that_the_definition_rounds(kind, group, size):
    """Activations that kernels quantise to int8 are all of it: 127ths of the largest of a group."""
    rng = np.random.default_rng(9)
    numbers = rng.standard_normal(size, np.float32)
    if kind == "int3.5":
        rounded = quantize_to_grid(numbers, grid_format(kind, group))
    else:
        rounded = quantize_to_table(numbers, table_format(kind, group))
        assert rounded.scales.min() < 0 < rounded.scales.max()
    truth, weight = dequantize_weight(rounded), pack(numbers, Format(kind, group))

    for num_rows in range(1, 18) if kind == "int3.5" else (1, 2, 5, 13):
        x = rng.standard_normal((num_rows, size[1]), np.float32)
        out = np.full((num_rows, size[0]), NAN)
        linear(x, weight, out=out)

        wide = x.astype(np.float64)
        bound = 2.0**-8 * (np.abs(wide) @ np.abs(truth).T)
        assert (np.abs(out - definition.linear(wide, truth)) <= bound).all()


@pytest.mark.parametrize(
    ("group", "unit"), [(32, 2.0**-15), (None, 2.0**-10)], ids=["groups", "rows"]
)
def test_activations_of_16_bits_are_rounded_that_little(group, unit):
    """Of a group of 32, to 32,767ths of its largest; of a row of 1,031, to 8,168ths."""
    rng = np.random.default_rng(3)
    for size in ((17, 33), (130, 1031)):
        numbers = rng.standard_normal(size, np.float32)
        exact = pack(numbers, Format("w8a16", group))
        np.testing.assert_array_equal(unpack(exact), unpack(pack(numbers, Format("int8", group))))
        for num_rows in (1, 3, 13):
            x = rng.standard_normal((num_rows, size[1]), np.float32)
            x[-1] = np.abs(x).max()  # the largest sums
            out = np.full((num_rows, size[0]), NAN)
            linear(x, exact, out=out)

            weights = unpack(exact).astype(np.float64)
            bound = unit * (np.abs(x).max() * np.abs(weights).sum(1)) / 2
            assert (np.abs(out - x.astype(np.float64) @ weights.T) <= bound).all()


def test_the_largest_codes_of_16_bits_do_not_overflow():
    numbers = np.tile(np.array([-1, 1], np.float32), (64, 2048))  # codes 0 and 255
    for group in (32, 64, 128, None):
        weight = pack(numbers, Format("w8a16", group))
        for sign in (1, -1):
            x = np.float32(sign) * np.tile(np.array([[0, 1]], np.float32), (2, 2048))
            out = np.full((2, 64), NAN)
            linear(x, weight, out=out)

            np.testing.assert_allclose(out, x.astype(np.float64) @ unpack(weight).T, rtol=1e-5)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_sums_of_the_largest_codes_of_16_bits_with_a_sign_are_whole(group):
    """128 products of 4,095, the largest mean, by 4,097 are 127 less than what 32 bits hold."""
    signs = np.where(np.random.default_rng(7).random((64, 512)) < 0.5, -1, 1).astype(np.float32)
    signs[0], signs[1] = 1, -1
    sizes = np.ones((64, 512), np.float32)
    sizes[20:] = np.random.default_rng(8).uniform(0, 1, (44, 512)) ** 4  # a few that are largest
    weight = pack(sizes * signs, Format("w13a13", group))
    x = np.concatenate([signs[:12], signs[30:34], -signs[:5]])
    for rows in (x[:1], x[:4], x):
        out = np.full((len(rows), 64), NAN)
        linear(rows, weight, out=out)

        np.testing.assert_allclose(out, rows @ unpack(weight).T, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_an_outlier_takes_digits_from_its_own_group_alone(group):
    rng = np.random.default_rng(12)
    weight = rng.standard_normal((70, 640), np.float32)
    x = rng.standard_normal((9, 640), np.float32)
    x[:, 5] *= 50
    out = np.full((9, 70), NAN)

    linear(x, pack(weight, Format("w13a13", group)), out=out)

    truth = x.astype(np.float64) @ weight.astype(np.float64).T
    most = min(32767, (2**31 - 1) // (4095 * group))
    groups = np.abs(x).reshape(9, -1, group).max(2), np.abs(weight).reshape(70, -1, group).max(2)
    steps = np.repeat(groups[0] / most, group, 1), np.repeat(groups[1] / 4064, group, 1)
    bound = steps[0] @ np.abs(weight).T / 2 + np.abs(x) @ steps[1].T / 2 + 1e-3
    assert (np.abs(out - truth) <= bound).all()
    cosines = (out * truth).sum(1) / np.sqrt((out**2).sum(1) * (truth**2).sum(1))
    assert (cosines >= 1 - 2e-6).all()


@pytest.mark.parametrize("group", [32, 64, 128, None])
def test_two_products_of_the_largest_narrow_codes_do_not_overflow_16_bits(group):
    numbers = np.tile(np.array([-1, -1, 1, 1], np.float32), (64, 1024))  # codes 0 and 180
    weight = pack(numbers, Format("w7a7", group))
    for x in ([0, 0, 1, 1], [0, 0, -1, -1], [1, 1, 1, 1], [1, 1, -1, -1]):
        rows = np.tile(np.array(x, np.float32), (8, 1024))
        out = np.full((8, 64), NAN)
        linear(rows, weight, out=out)

        truth = rows.astype(np.float64) @ unpack(weight).T
        np.testing.assert_allclose(out, truth, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bfloat16_activations_are_not_rounded_further(size):
    rng = np.random.default_rng(1)
    weight = pack(rng.standard_normal(size, np.float32), Format("bfloat16"))

    for num_rows in TOKENS:
        x = rng.standard_normal((num_rows, size[1]), np.float32).astype(ml_dtypes.bfloat16)
        out = np.full((num_rows, size[0]), NAN)
        linear(x, weight, out=out)

        assert_close(out, x, weight)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_row_has_the_same_result_alone_and_among_others(format):
    rng, num_rows = np.random.default_rng(2), min(11, most_few(format))
    weight = pack(rng.standard_normal((100, 300), np.float32), format)
    x = rng.standard_normal((num_rows, 300), np.float32)
    together, alone = np.full((num_rows, 100), NAN), np.full((num_rows, 100), NAN)

    linear(x, weight, out=together)
    for row in range(num_rows):
        linear(x[row : row + 1], weight, out=alone[row : row + 1])

    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_one_worker_and_many_workers_give_the_same_bits(format, monkeypatch):
    rng = np.random.default_rng(3)
    weight = pack(rng.standard_normal((400, 96), np.float32), format)
    x = rng.standard_normal((250, 96), np.float32)
    results = []

    for workers in (1, 2, 5):
        out = np.full((250, 400), NAN)
        with ThreadPool(workers) as thread_pool:
            monkeypatch.setattr(module, "shared_thread_pool", lambda pool=thread_pool: pool)
            monkeypatch.setattr(gemm_call, "usable_cpus", lambda workers=workers: workers)
            linear(x, weight, out=out)
        results.append(out)

    assert_close(results[0], x, weight)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_the_largest_codes_of_one_sign_do_not_overflow(format):
    weight = np.full((16, 4096), 1.0, np.float32)
    weight[:, ::7] = -1.0
    weight = pack(weight, format)
    x = np.ones((2, 4096), np.float32)
    x[1] = -1
    out = np.full((2, 16), NAN)

    linear(x, weight, out=out)

    assert_close(out, x, weight)


def test_out_may_be_columns_of_a_wider_array():
    rng = np.random.default_rng(4)
    weight = pack(rng.standard_normal((70, 40), np.float32), Format("int8"))
    x = rng.standard_normal((3, 40), np.float32)
    wide = np.full((3, 100), NAN)

    linear(x, weight, out=wide[:, 20:90])

    assert_close(wide[:, 20:90], x, weight)
    assert np.isnan(wide[:, :20]).all()
    assert np.isnan(wide[:, 90:]).all()


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_shows_in_its_own_row_only(format, number):
    rng = np.random.default_rng(5)
    weight = pack(rng.standard_normal((70, 64), np.float32), format)
    x = rng.standard_normal((6, 64), np.float32)
    x[3, 17] = number
    out = np.zeros((6, 70), np.float32)

    linear(x, weight, out=out)

    assert not np.isfinite(out[3]).any()
    assert np.isfinite(np.delete(out, 3, 0)).all()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_row_of_zeros_gives_the_bias(format):
    weight = pack(np.ones((5, 8), np.float32), format)
    bias = np.arange(5, dtype=np.float32)
    out = np.full((2, 5), NAN)

    linear(np.zeros((2, 8), np.float32), weight, out=out, bias=bias)

    np.testing.assert_array_equal(out, [bias, bias])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects pages by mprotect")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_memory_after_the_arrays_is_not_touched(kind):
    packed = pack(np.ones((40, 64), np.float32), Format(kind))
    packed = Packed(packed.layout, before_a_closed_page(packed.panels))

    def multiply():
        for num_rows in (1, 3, 7):
            x = before_a_closed_page(np.ones((num_rows, 64), np.float32))
            out = before_a_closed_page(np.zeros((num_rows, 40), np.float32))
            linear(x, packed, out=out)
            np.testing.assert_allclose(out, 64)

    child = multiprocessing.get_context("fork").Process(target=multiply)
    child.start()
    child.join()

    assert child.exitcode == 0


def test_no_rows_are_no_work():
    weight = pack(np.ones((5, 8), np.float32), Format("int8"))

    out = np.full((2, 5), np.nan, np.float32)
    linear(np.empty((0, 8), np.float32), weight, out=out[:0])

    assert np.isnan(out).all()


def test_arguments_that_do_not_fit_are_named():
    weight = pack(np.ones((5, 8), np.float32), Format("int8"))
    x, out = np.ones((2, 8), np.float32), np.empty((2, 5), np.float32)

    with pytest.raises(DTypeError, match="x holds bfloat16; int8 weights take float32"):
        linear(x.astype(ml_dtypes.bfloat16), weight, out=out)
    with pytest.raises(DTypeError, match="out holds float64"):
        linear(x, weight, out=out.astype(np.float64))
    with pytest.raises(ShapeError, match=r"x: expected contiguous \(T C\) with C = 8"):
        linear(x[:, :7], weight, out=out)
    with pytest.raises(ShapeError, match=r"out: expected shape \(2, 5\)"):
        linear(x, weight, out=out[:1])
    with pytest.raises(ShapeError, match="with contiguous columns"):
        linear(x, weight, out=np.empty((2, 10), np.float32)[:, ::2])
    with pytest.raises(ShapeError, match=r"bias: expected contiguous \(5,\)"):
        linear(x, weight, out=out, bias=np.ones(4, np.float32))


def assert_close(out, x, weight, bias=0.0):
    """Compare with the definition; the bound is in units of the sum of the products' sizes.

    2^-17 is what two bfloat16 may lack of an activation.
    """
    factors = activations(x, weight.layout)
    one, _ = micro_kernels(weight.layout.format, rounded=False, level=active_level())
    unit = 1e-6 if one.parts == 1 else 1e-6 + 2**-17
    weights = unpack(weight).astype(np.float64)
    expected = factors @ weights.T + bias
    bound = unit * (np.abs(factors) @ np.abs(weights).T + np.abs(bias)) + 1e-30
    if expands(weight.layout.format, len(x)):
        bound += np.abs(factors) @ may_lack(weight.layout.format, weights, np.abs(weights)).T
    assert (np.abs(out - expected) <= bound).all(), np.abs((out - expected) / bound).max()


def activations(x, layout):
    """What the weights multiply, in float64: codes times scale where weights are codes."""
    if not layout.format.is_quantised:
        return x.astype(np.float64)
    if expands(layout.format, len(x)):
        return rows_seen(x, layout.format)
    parts = []
    for start in range(0, layout.channels, layout.group_channels):
        group = x[:, start : start + layout.group_channels]
        codes, scale = quantised_rows(group, layout)
        parts.append(codes.astype(np.float64) * scale)
    return np.concatenate(parts, axis=1)


def quantised_rows(x, layout):
    """Codes of a group of rows[T C], and scales[T 1].

    From -90 to 90, or as far as 32 bits hold the sum of their products with as many of 4,095.
    """
    if layout.format.kind not in ("w7a7", "w13a13"):
        return quantize_rows(x)
    is_narrow = layout.format.kind == "w7a7"
    most = 90 if is_narrow else min(32767, (2**31 - 1) // (4095 * layout.group_channels))
    scale = np.abs(x).max(1, keepdims=True) / np.float32(most)
    scale[scale == 0] = 1
    return np.rint(x / scale), scale


def before_a_closed_page(array):
    """A copy of an array after whose last byte no memory may be read or written."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    closed = ctypes.c_void_p(memory.ctypes.data + size)
    assert ctypes.CDLL(None).mprotect(closed, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy = memory[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy
