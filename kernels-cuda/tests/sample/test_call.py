"""Sampling called with numbers and arrays; the tests that need no GPU come first."""

import numpy as np
import pytest
from spaninfer_kernel_launch import DeviceError, DTypeError, ShapeError
from spaninfer_kernels_cuda import sample_from_logits
from spaninfer_kernels_cuda.sample import Status
from spaninfer_op_reference import RowSampling, sample

VOCAB = 5003


def logits_of(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, VOCAB), np.float32) * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(temperature=-0.1), "temperature is -0.1; finite, and at least 0"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(temperature=float("inf")), "temperature is inf"),
        (dict(top_k=-1), "top_k is -1; at least 0"),
        (dict(top_p=0.0), "top_p is 0.0; above 0, at most 1"),
        (dict(top_p=1.5), "top_p is 1.5"),
        (dict(min_p=-0.5), "min_p is -0.5; at least 0"),
        (dict(seed=2**64), "seed is 18446744073709551616; it has 64 bits"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sample_from_logits(logits_of(2), **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(temperature=np.ones(3, np.float32)), ShapeError, "temperature: axis 0 is 3"),
        (dict(top_p=np.ones(2)), DTypeError, "top_p holds float64, but the kernel needs float32"),
        (dict(top_k=np.ones(2, np.int64)), DTypeError, "top_k holds int64, but the kernel needs"),
        (dict(seed=np.ones(2, np.int32)), DTypeError, "seed holds int32, but the kernel needs"),
        (dict(positions=np.ones((2, 1), np.int32)), ShapeError, r"positions: expected axes \(2\)"),
        (dict(mask=np.ones((2, 9), np.int32)), ShapeError, "mask: axis 1 is 9, but the kernel"),
        (dict(), DeviceError, "logits lies in cpu memory"),
    ],
)
def test_arrays_that_do_not_fit_are_named(options, error, message):
    with pytest.raises(error, match=message):
        sample_from_logits(logits_of(2), **options)


def expected(logits, rows):
    tokens, failed = sample(logits.astype(np.float64), rows)
    assert not failed
    return tokens


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=0.0),
        dict(temperature=0.8),
        dict(temperature=0.8, top_k=50),
        dict(temperature=1.2, top_p=0.9, seed=2**64 - 5),
        dict(temperature=0.7, top_k=100, top_p=0.8, min_p=0.02, seed=11),
    ],
)
def test_numbers_are_for_all_rows_and_rows_draw_apart(on_gpu, options):
    logits = np.repeat(logits_of(1), 64, axis=0)

    tokens = on_gpu.get(sample_from_logits(on_gpu.put(logits), **options))

    given = dict(seed=0) | options
    rows = [RowSampling(position=row, **given) for row in range(64)]
    np.testing.assert_array_equal(tokens, expected(logits, rows))
    assert (len(set(tokens.tolist())) == 1) is (options["temperature"] == 0)


@pytest.mark.gpu
def test_arrays_have_a_number_per_row(on_gpu):
    logits, draw = logits_of(37), np.random.default_rng(1)
    arrays = {
        "temperature": draw.uniform(0.2, 1.5, 37).astype(np.float32),
        "top_k": draw.integers(0, 200, 37).astype(np.int32),
        "top_p": draw.uniform(0.3, 1.0, 37).astype(np.float32),
        "min_p": draw.uniform(0.0, 0.1, 37).astype(np.float32),
        "seed": draw.integers(-(2**63), 2**63, 37),
        "positions": draw.integers(0, 1000, 37).astype(np.int32),
    }
    arrays["temperature"][::5] = 0

    tokens = sample_from_logits(
        on_gpu.put(logits), **{name: on_gpu.put(array) for name, array in arrays.items()}
    )

    rows = []
    for row in range(37):
        own = {name: array[row].item() for name, array in arrays.items()}
        own["seed"] %= 2**64
        rows.append(RowSampling(position=own.pop("positions"), **own))
    np.testing.assert_array_equal(on_gpu.get(tokens), expected(logits, rows))


@pytest.mark.gpu
def test_a_mask_allows_tokens_and_a_status_says_where_it_allows_none(on_gpu):
    logits = logits_of(3)
    mask = np.zeros((3, -(-VOCAB // 32)), np.int32)
    mask[0, 3], mask[1, 0] = 1 << 5, 1 << 7
    status = on_gpu.put(np.full(3, 9, np.int32))

    tokens = sample_from_logits(on_gpu.put(logits), mask=on_gpu.put(mask), status=status)

    assert on_gpu.get(tokens).tolist() == [3 * 32 + 5, 7, 0]
    assert on_gpu.get(status).tolist() == [Status.SAMPLED, Status.SAMPLED, Status.ALL_MASKED]


@pytest.mark.gpu
def test_results_go_where_they_are_asked_for(on_gpu):
    out = on_gpu.put(np.zeros(2, np.int32))

    assert sample_from_logits(on_gpu.put(logits_of(2)), 0.0, out=out) is out
    assert on_gpu.get(out).tolist() == logits_of(2).argmax(axis=1).tolist()


@pytest.mark.gpu
def test_no_rows_are_no_tokens(on_gpu):
    assert on_gpu.get(sample_from_logits(on_gpu.put(logits_of(0)))).shape == (0,)
