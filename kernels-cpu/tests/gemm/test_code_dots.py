"""GEMMs with published quantised weights against the definition in float64.

`test_isa_level.py` runs some of this file again under every set of instructions for bytes.
"""

import numpy as np
import pytest
from code_forms import FORMS, made, meant
from expansion import FEW, expands, may_lack, most_few, rows_seen, seen_together
from spaninfer_kernels_cpu import linear, pack_codes
from spaninfer_kernels_cpu.gemm.gemm_call import Epilogue, Gemm
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool
from spaninfer_op_reference import quantize_rows

QUICK = ("Q4_K", "Q6_K")
SLOW = ("Q5_1", "IQ4_XS", "MXFP4", "zeros g64", "pairs_g32", "pairs_g64")
MARKS = dict.fromkeys(FORMS, pytest.mark.sweep)  # three seconds each to compile
MARKS |= dict.fromkeys(SLOW, pytest.mark.slow)
NAMES = [name if name in QUICK else pytest.param(name, marks=MARKS[name]) for name in FORMS]
NAN = np.float32(np.nan)


def multiplied(name, outputs, channels, num_rows, x=None):
    """Products, what they are by the definition, and how much they may differ from it."""
    weight = made(name, 1, outputs, channels, seed=num_rows)
    if x is None:
        x = np.random.default_rng(1).standard_normal((num_rows, channels), np.float32)
    out = np.full((num_rows, outputs), NAN)

    linear(x, pack_codes([weight], FORMS[name]), out=out)

    format, numbers = FORMS[name], meant(name, weight)[0]
    # Of a number with a minimum or a zero point, both parts are added for themselves.
    sizes = np.abs(numbers) if format.codes.shift == "none" else parts_of(name, weight)
    lacking = 2e-6 * sizes
    if expands(format, num_rows):
        seen, lacking = rows_seen(x, format), lacking + may_lack(format, numbers, sizes)
    else:
        seen = activations(x, seen_together(format, channels))
    return out, seen @ numbers.T, np.abs(seen) @ lacking.T + 1e-30


def activations(x, group):
    """What weights see of rows: codes times scale."""
    parts = []
    for start in range(0, x.shape[1], group):
        codes, scale = quantize_rows(x[:, start : start + group])
        parts.append(codes.astype(np.float64) * scale)
    return np.concatenate(parts, axis=1)


def parts_of(name, weight):
    """The sizes of a weight with all codes' least and largest terms: q * scale and the rest."""
    numbers = meant(name, weight)[0]
    zero = meant(name, type(weight)(np.zeros_like(weight.codes), *others(weight)))[0]
    return np.abs(numbers - zero) + np.abs(zero)


def steps_of(name, weight):
    """The sizes of what two codes next to each other differ by."""
    zeros = np.zeros_like(weight.codes)
    both = (meant(name, type(weight)(codes, *others(weight)))[0] for codes in (zeros, zeros + 1))
    return np.abs(np.subtract(*both))


def others(weight):
    return weight.scales, weight.shifts, weight.outer, weight.outer_shifts


@pytest.mark.parametrize("name", NAMES)
def test_gemms_are_those_of_the_numbers_that_codes_stand_for(name):
    for outputs, channels in ((70, 512), (64, 768)):
        for num_rows in (1, 3, 7, 19, 67):
            out, expected, bound = multiplied(name, outputs, channels, num_rows)

            assert (np.abs(out - expected) <= bound).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_codes_and_activations_do_not_overflow(name):
    format, channels = FORMS[name], 512
    weight = made(name, 1, 64, channels)
    largest = 0 if format.codes.table is None else int(np.argmax(format.codes.table))
    weight.codes[:] = largest or format.codes.levels - 1
    x = np.ones((FEW, channels), np.float32)
    x[4:] = -1
    out = np.full((FEW, 64), NAN)

    linear(x, pack_codes([weight], format), out=out)

    expected = x.astype(np.float64) @ meant(name, weight)[0].T
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.parametrize("name", QUICK)
def test_a_row_has_the_same_result_alone_and_among_others(name):
    """Where many are multiplied otherwise, the same alone and among a few, and among any more."""
    weight = pack_codes([made(name, 1, 100, 512)], FORMS[name])
    x = np.random.default_rng(2).standard_normal((70, 512), np.float32)
    few = most_few(FORMS[name])

    for num_rows, each in ((few, 1), (70, few + 1)):
        together, apart = (np.full((num_rows, 100), NAN) for _ in range(2))
        linear(x[:num_rows], weight, out=together)
        for start in (*range(0, num_rows - each, each), num_rows - each):
            linear(x[start : start + each], weight, out=apart[start : start + each])

        np.testing.assert_array_equal(apart, together)


@pytest.mark.parametrize("name", QUICK)
def test_many_rows_are_within_a_256th_of_the_numbers_that_codes_stand_for(name):
    weight, rng = made(name, 1, 70, 768), np.random.default_rng(4)
    x, numbers = rng.standard_normal((41, 768), np.float32), meant(name, weight)[0]
    out = np.full((41, 70), NAN)

    linear(x, pack_codes([weight], FORMS[name]), out=out)

    wide = x.astype(np.float64)
    bound = 2.0**-8 * (np.abs(wide) @ np.abs(numbers).T)
    assert (np.abs(out - wide @ numbers.T) <= bound).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_among_many_rows_is_within_a_byte_of_what_its_code_stands_for(name):
    """Rows with one activation show each weight: 600 channels are a part of a group more."""
    codes, channels = FORMS[name].codes, 600 if FORMS[name].codes.inner is None else 768
    weight, x = made(name, 1, 70, channels), np.eye(channels, dtype=np.float32)
    numbers = codes.table or range(codes.levels)
    weight.codes[..., ::16], weight.codes[..., 1::16] = np.argmin(numbers), np.argmax(numbers)
    out = np.full((channels, 70), NAN)

    linear(x, pack_codes([weight], FORMS[name]), out=out)

    numbers = meant(name, weight)[0]
    lacking = 2e-6 * (np.abs(numbers) + parts_of(name, weight))
    if expands(FORMS[name], channels):
        lacking += may_lack(FORMS[name], numbers, np.abs(numbers), reached=1)
        lacking += 2.0**-16 * steps_of(name, weight)  # 256 of them come and go (expanded_panel)
    assert (np.abs(out.T - numbers) <= lacking).all()


@pytest.mark.parametrize("name", QUICK)
def test_more_rows_than_a_task_has_are_added_in_place_as_if_each_were_alone(name):
    """With a bias; 70 outputs are a panel and a part of one."""
    weight = pack_codes([made(name, 1, 70, 768)], FORMS[name])
    rng = np.random.default_rng(3)
    x = rng.standard_normal((401, 768), np.float32)
    bias, residual = (rng.standard_normal(size, np.float32) for size in (70, (401, 70)))
    gemm = Gemm(weight)
    scratch = np.empty(len(x) * gemm.scratch_bytes, np.uint8)

    def added(first, stop):
        out = residual[first:stop].copy()
        epilogue = Epilogue(bias, Matrix.of(out), 0.5)
        places = {"out": Matrix.of(out), "scratch": scratch.ctypes.data, "epilogue": epilogue}
        script = Script(gemm.calls(Matrix.of(x[first:stop]), **places))
        shared_thread_pool().run(script, [stop - first])
        return out

    together, plain = added(0, 401), np.empty((401, 70), np.float32)
    linear(x, weight, out=plain, bias=bias)

    np.testing.assert_allclose(together, residual + np.float32(0.5) * plain, rtol=1e-5, atol=1e-4)
    few = most_few(FORMS[name])
    for first, stop in ((0, few + 1), (190, 197 + few), (400 - few, 401)):
        np.testing.assert_array_equal(added(first, stop), together[first:stop])


@pytest.mark.parametrize(("name", "channels"), [("NVFP4", 16), ("zeros g64", 80), ("rows", 77)])
@pytest.mark.sweep
def test_groups_that_channels_do_not_fill_are_multiplied(name, channels):
    for num_rows in (1, 6, 19):
        out, expected, bound = multiplied(name, 10, channels, num_rows)

        assert (np.abs(out - expected) <= bound).all()
