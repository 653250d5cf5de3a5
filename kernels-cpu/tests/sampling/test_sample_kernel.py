"""The sampling kernel against the definition, given the same random numbers."""

import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from numba import njit
from spaninfer_kernels_cpu.sampling import sample_kernel as kernel
from spaninfer_kernels_cpu.sampling.top_k_kernel import select_largest
from spaninfer_kernels_cpu.sampling.typical_kernel import NUM_SUMS
from spaninfer_op_reference import RowSampling

VOCABULARY = 5003


@njit
def draw(logits, sampling, room):
    return kernel.sample(logits, sampling, room)


@njit
def penalize(logits, prompt, output, repetition, presence, frequency, counts):
    penalties = kernel.Penalties(repetition, presence, frequency)
    kernel.penalize(logits, prompt, output, penalties, counts)


@njit
def largest(x, ids, count, values, found):
    return select_largest(x, ids, count, values, found, len(values))


@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 50},
        {"top_k": VOCABULARY + 5},
        {"top_p": 0.9},
        {"top_p": 0.1, "temperature": 1.7},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"typical_p": 0.9},
        {"typical_p": 0.2, "temperature": 1.5},
        {"typical_p": 0.999},
        {"top_k": 40, "typical_p": 0.7},
        {"typical_p": 0.8, "top_p": 0.7, "min_p": 0.02},
        {"top_k": 200, "top_p": 0.8, "min_p": 0.01, "temperature": 0.7},
    ],
    ids=str,
)
def test_the_token_is_that_of_the_definition(cuts, spread):
    rng = np.random.default_rng(5)
    rows = 0
    for position in range(60):
        logits = (spread * rng.standard_normal(VOCABULARY)).astype(np.float32)
        seed = int(rng.integers(2**64, dtype=np.uint64))
        row = RowSampling(seed=seed, position=position * 2**30, **cuts)
        expected, failed = op_reference.sample(logits[None], [row])
        rows += token(logits, row) == expected[0]
        assert not failed

    assert rows >= 59  # of sixty, rounding may decide about one


def test_equal_logits_go_to_the_smaller_ids():
    logits = np.zeros(300, np.float32)

    tokens = {token(logits, RowSampling(seed=seed, position=1, top_k=7)) for seed in range(200)}

    assert tokens == set(range(7))
    assert token(logits, RowSampling(seed=0, position=0, temperature=0.0)) == 0


def test_of_tokens_equally_typical_the_smaller_ids_stay():
    logits = np.zeros(300, np.float32)

    tokens = {
        token(logits, RowSampling(seed=seed, position=1, typical_p=0.021)) for seed in range(200)
    }

    assert tokens == set(range(7))  # 6 of 300 have 0.02 of the mass


@pytest.mark.parametrize("logits", [[np.nan, 1, 2], [1, np.nan], [-np.inf] * 4, [0, np.inf], []])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_choosable_token_has_none(logits, temperature):
    row = RowSampling(seed=1, position=1, temperature=temperature)

    assert token(np.array(logits, np.float32), row) == -1


def test_the_row_is_drawn_from_its_distribution():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))

    tokens = [token(logits, RowSampling(seed=7, position=position)) for position in range(4000)]

    shares = np.bincount(tokens, minlength=4) / 4000
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.03)


@pytest.mark.parametrize("penalties", [(1.0, 0.5, 0.0), (1.3, 0.0, 0.0), (0.8, 0.5, 0.25)])
def test_penalties_are_those_of_the_definition_and_leave_no_counts(penalties):
    repetition, presence, frequency = penalties
    rng = np.random.default_rng(2)
    logits = rng.standard_normal(100).astype(np.float32)
    prompt, output = (rng.integers(0, 60, n).astype(np.int32) for n in (40, 30))
    row = RowSampling(
        temperature=0.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        prompt_ids=prompt,
        output_ids=output,
    )
    expected = op_reference.process(logits.astype(float), row)
    counts = np.zeros(100, np.int32)

    penalize(logits, prompt, output, *np.array(penalties, np.float32), counts)

    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)
    assert not counts.any()


@pytest.mark.parametrize("count", [0, 1, 2, 31, 1000])
@pytest.mark.parametrize("k", [1, 2, 7, 64, 1000, 1500])
def test_the_largest_come_in_order_smaller_ids_first(count, k):
    x = np.random.default_rng(count).integers(0, 40, count).astype(np.float32)
    values, found = np.full(k, np.nan, np.float32), np.full(k, -7, np.int32)

    size = largest(x, np.arange(count, dtype=np.int32), count, values, found)

    expected = op_reference.topk(x, k)
    assert size == min(count, k)
    np.testing.assert_array_equal(values[:size], expected[0])
    np.testing.assert_array_equal(found[:size], expected[1])
    assert (found[size:] == -7).all()


def token(logits, row):
    size = len(logits)
    room = kernel.Candidates(
        *(np.empty(size, dtype) for dtype in (np.float32, np.int32, np.float32, np.int32)),
        np.empty(4 * -(-size // 4), np.uint32),
        np.empty(NUM_SUMS, np.float64),
    )
    sampling = kernel.Sampling(
        np.float32(row.temperature),
        row.top_k,
        np.float32(row.typical_p),
        np.float32(row.top_p),
        np.float32(row.min_p),
        np.uint64(row.seed),
        np.uint64(row.position),
    )
    return draw(logits, sampling, room)
