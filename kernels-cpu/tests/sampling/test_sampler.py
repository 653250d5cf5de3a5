"""Sampling of many rows at once against the definition, given the same random numbers."""

import numpy as np
import pytest
import spaninfer_op_reference as op_reference
from spaninfer_kernels_cpu import DTypeError, KernelError, Sampler, SamplingRow, ShapeError
from spaninfer_op_reference import RowSampling

VOCABULARY = 1003
WISHES = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.8},
    {"top_p": 0.95, "repetition_penalty": 1.3},
    {"typical_p": 0.6, "repetition_penalty": 1.2},
    {"min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"temperature": 0.0, "repetition_penalty": 4.0},
]


@pytest.fixture(scope="module")
def sampler():
    return Sampler(VOCABULARY)


@pytest.mark.parametrize("rows", [1, 60])
def test_tokens_are_those_of_the_definition_and_logits_stay_as_they_are(sampler, rows):
    rng = np.random.default_rng(rows)
    logits = (3 * rng.standard_normal((rows, VOCABULARY))).astype(np.float32)
    before = logits.copy()
    wishes = [
        WISHES[row % len(WISHES)]
        | {
            "seed": int(rng.integers(2**64, dtype=np.uint64)),
            "position": row * 2**27,
            "prompt_ids": rng.integers(0, VOCABULARY, 300).astype(np.int32),
            "output_ids": rng.integers(0, VOCABULARY, row).astype(np.int32),
        }
        for row in range(rows)
    ]

    tokens = sampler(logits, [SamplingRow(**wish) for wish in wishes])

    expected, failed = op_reference.sample(logits, [RowSampling(**wish) for wish in wishes])
    assert not failed
    assert (tokens != expected).sum() <= rows // 60  # of sixty, rounding may decide about one
    np.testing.assert_array_equal(logits, before)
    assert (sampler(logits, [SamplingRow(**wish) for wish in wishes]) == tokens).all()


def test_rows_without_an_allowed_token_have_none_and_disturb_no_other(sampler):
    logits = np.random.default_rng(0).standard_normal((3, VOCABULARY)).astype(np.float32)
    alone = sampler(logits[2:], [SamplingRow(seed=7, position=1)])
    logits[0, 5], logits[1] = np.nan, -np.inf

    tokens = sampler(logits, [SamplingRow(seed=7, position=1)] * 3)

    assert tokens.tolist() == [-1, -1, alone[0]]


def test_ids_of_another_form_are_refused_by_name():
    with pytest.raises(DTypeError, match="prompt_ids hold int64; the kernel takes int32"):
        SamplingRow(seed=1, position=0, prompt_ids=np.arange(4, dtype=np.int64))
    with pytest.raises(ShapeError, match="output_ids: expected one contiguous axis"):
        SamplingRow(seed=1, position=0, output_ids=np.arange(8, dtype=np.int32)[::2])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("temperature", number) for number in (float("nan"), -1.0)),
        *((name, number) for name in ("top_p", "typical_p") for number in (0.0, 2.0, -1.0)),
        *(("min_p", number) for number in (5.0, -0.1)),
        ("repetition_penalty", 0.0),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(sampler, name, number):
    with pytest.raises(KernelError, match=f"{name} is {number}; allowed is"):
        sampler(
            np.zeros((1, VOCABULARY), np.float32),
            [SamplingRow(seed=0, position=0, **{name: number})],
        )


def test_no_rows_have_no_tokens(sampler):
    assert sampler(np.empty((0, VOCABULARY), np.float32), []).shape == (0,)


def test_logits_of_another_form_are_refused_by_name(sampler):
    draws = [SamplingRow(seed=0, position=0)]

    with pytest.raises(ShapeError, match="logits: expected shape"):
        sampler(np.zeros((1, VOCABULARY + 1), np.float32), draws)
    with pytest.raises(DTypeError, match="logits hold float64"):
        sampler(np.zeros((1, VOCABULARY)), draws)
