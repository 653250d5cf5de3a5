import math

import numpy as np
import pytest
from spaninfer_op_reference.candidates import (
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    within_reach,
)

torch = pytest.importorskip("torch", reason="transformers needs torch")
processors = pytest.importorskip(
    "transformers.generation.logits_process", reason="transformers is the second opinion"
)

V = 3000
INF = math.inf


def kept_by(theirs, logits):
    """Return the ids that a processor of transformers leaves."""
    y = theirs(torch.zeros(1, 1, dtype=torch.int64), torch.from_numpy(logits)[None])[0]
    return np.flatnonzero(y > -INF).tolist()


def random_logits(seed, scale):
    return np.random.default_rng(seed).normal(size=V, scale=scale)


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((keep_top_k, 1), processors.TopKLogitsWarper(1)),
        ((keep_top_k, 50), processors.TopKLogitsWarper(50)),
        ((keep_top_k, 2 * V), processors.TopKLogitsWarper(2 * V)),
        ((keep_top_p, 0.3), processors.TopPLogitsWarper(0.3)),
        ((keep_top_p, 0.95), processors.TopPLogitsWarper(0.95)),
        ((keep_typical, 0.2), processors.TypicalLogitsWarper(0.2)),
        ((keep_typical, 0.9), processors.TypicalLogitsWarper(0.9)),
        ((keep_min_p, 0.1), processors.MinPLogitsWarper(0.1)),
    ],
)
def test_what_is_kept_is_what_transformers_keeps(ours, theirs, scale):
    logits = random_logits(int(scale * 10), scale)
    keep, amount = ours

    kept = keep(within_reach(logits, INF), amount)

    assert kept.ids.tolist() == kept_by(theirs, logits)
    np.testing.assert_array_equal(kept.logits, logits[kept.ids])


def test_of_equal_tokens_the_smaller_ids_stay():
    logits = np.array([0.0, 1.0, 1.0, 1.0, 0.0])

    everything = within_reach(logits, INF)

    assert keep_top_k(everything, 2).ids.tolist() == [1, 2]
    assert keep_top_p(everything, 0.3).ids.tolist() == [1, 2]  # 0.26 each


def test_the_token_that_reaches_the_mass_is_the_last_one():
    everything = within_reach(np.log([0.5, 0.25, 0.125, 0.125]), INF)

    assert keep_top_p(everything, 0.5).ids.tolist() == [0]
    assert keep_top_p(everything, 0.51).ids.tolist() == [0, 1]
    assert keep_top_p(everything, 1e-9).ids.tolist() == [0]
    assert keep_top_p(everything, 1 - 1e-16).ids.tolist() == [0, 1, 2, 3]


def test_what_lies_within_reach_is_measured_from_the_largest():
    y = within_reach(np.array([1.0, -INF, 5.0, 3.0]), 2.0)

    assert y.ids.tolist() == [2, 3]
    assert y.logits.tolist() == [5.0, 3.0]
