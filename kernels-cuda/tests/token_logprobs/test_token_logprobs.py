"""Log-probabilities of given tokens against their definition in float64."""

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import ShapeError, get_gpu
from spaninfer_kernels_cuda.token_logprobs import MAX_TOP, Entries, Logprobs, prepare
from spaninfer_op_reference import top_logprobs

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
RNG = np.random.default_rng(3)


def normal(rows, vocab):
    return RNG.standard_normal((rows, vocab)) * 4


def few_levels(rows, vocab):
    return RNG.integers(0, 3, (rows, vocab)) / 2


def equal(rows, vocab):
    return np.full((rows, vocab), -1.5)


def rising(rows, vocab):
    return np.tile(np.arange(vocab) / vocab * 30 - 20, (rows, 1))


def falling(rows, vocab):
    return rising(rows, vocab)[:, ::-1].copy()


def mostly_impossible(rows, vocab):
    logits = np.full((rows, vocab), -np.inf)
    logits[:, :: max(1, vocab // 7)] = normal(rows, vocab)[:, :: max(1, vocab // 7)]
    return logits


def in_one_group(rows, vocab):
    """All large logits are read by the same threads."""
    logits = normal(rows, vocab)
    logits[:, np.arange(vocab) // 64 % 64 == 5] += 40
    return logits


KINDS = [normal, few_levels, equal, rising, falling, mostly_impossible, in_one_group]


def run(on_gpu, logits, rows, token_ids, num_top):
    """Return what the kernel says, in memory that was filled with other numbers."""
    count = len(rows)
    step = prepare(
        count=count, length=logits.shape[1], dtype=logits.dtype, gpu=get_gpu(), num_top=num_top
    )
    outs = [on_gpu.put(np.full(count, 7, kind)) for kind in (np.float32, np.int32)]
    shape = (count, max(num_top, 1))
    outs += [on_gpu.put(np.full(shape, 7, kind)) for kind in (np.int32, np.float32)]
    given = Entries(*(on_gpu.put(np.asarray(x, np.int32)) for x in (rows, token_ids)))
    step.launch(on_gpu.put(logits), given, out=Logprobs(*outs))
    return [on_gpu.get(out) for out in outs]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("vocab", [1, 7, 63, 1000, 4097, 50_257, 151_936])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_entries_are_what_the_definition_says(on_gpu, kind, vocab, dtype):
    logits = kind(5, vocab).astype(dtype)
    exact = logits.astype(np.float64)
    best = np.argmax(exact[4])  # always possible
    rows = np.array([4, 0, 3, 4, 1, 2, 4])
    ids = np.array([best, *RNG.integers(0, vocab, 5), best])
    for num_top in sorted({0, 1, min(5, vocab), min(20, vocab), min(MAX_TOP, vocab)}):
        expected = top_logprobs(exact[rows], ids, num_top)

        chosen, ranks, top_ids, top = run(on_gpu, logits, rows, ids, num_top)

        np.testing.assert_allclose(chosen, expected.chosen, rtol=3e-6, atol=3e-6)
        assert ranks.tolist() == expected.rank.tolist()
        if num_top:
            there = np.isfinite(expected.top)
            np.testing.assert_array_equal(top_ids, np.where(there, expected.top_ids, -1))
            np.testing.assert_allclose(top, expected.top, rtol=3e-6, atol=3e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_says_nothing_harms_no_other(on_gpu, bad):
    logits = normal(3, 5003).astype(np.float32)
    logits[1, 4000] = bad
    expected = top_logprobs(logits[[0, 2]].astype(np.float64), np.array([9, 9]), 3)

    chosen, ranks, top_ids, top = run(on_gpu, logits, [0, 1, 2], [9, 9, 9], 3)

    assert np.isnan(chosen[1])
    assert np.isnan(top[1]).all()
    np.testing.assert_allclose(chosen[[0, 2]], expected.chosen, rtol=3e-6, atol=3e-6)
    assert ranks[[0, 2]].tolist() == expected.rank.tolist()
    np.testing.assert_array_equal(top_ids[[0, 2]], expected.top_ids)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"length": 0}, "rows have 0 logits; at least 1"),
        ({"length": 9, "num_top": MAX_TOP + 1}, "65 most likely tokens; at most 64"),
    ],
)
def test_sizes_that_no_launch_takes_are_refused(sizes, message):
    with pytest.raises(ShapeError, match=message):
        prepare(count=1, dtype=np.float32, gpu=None, **sizes)
