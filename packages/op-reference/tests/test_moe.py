import math

import numpy as np
import pytest
from spaninfer_op_reference import experts, gated, route

E = 12


def route_one(logits, top_k, kind, normalise, scale, groups, group_topk, group_score, correction):
    """Return what a token's logits choose, by sorting lists."""
    total = sum(math.exp(x) for x in logits)
    score = {
        "softmax": lambda x: math.exp(x) / total,
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "sqrt_softplus": lambda x: math.sqrt(math.log(1 + math.exp(x))),
    }[kind]
    scores = [score(x) for x in logits]
    choice = [score + extra for score, extra in zip(scores, correction, strict=True)]
    size = len(logits) // groups
    members = [range(g * size, (g + 1) * size) for g in range(groups)]
    worth = [
        sum(sorted((choice[e] for e in member), reverse=True)[: 1 if group_score == "max" else 2])
        for member in members
    ]
    best = sorted(range(groups), key=lambda g: -worth[g])[: group_topk if groups > 1 else 1]
    open_to = [e for g in best for e in members[g]]
    ids = sorted(open_to, key=lambda e: -choice[e])[:top_k]
    weights = [scores[e] for e in ids]
    whole = sum(weights) if normalise else 1.0
    return ids, [weight / whole * scale for weight in weights]


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    ("groups", "group_topk", "group_score"), [(1, 1, "max"), (4, 2, "max"), (4, 2, "top2")]
)
@pytest.mark.parametrize("corrected", [False, True])
def test_routing_is_what_sorting_lists_chooses(
    kind, normalise, groups, group_topk, group_score, corrected
):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, E), scale=2)
    correction = rng.normal(size=E) if corrected else None

    ids, weights = route(
        logits,
        top_k=3,
        kind=kind,
        normalise=normalise,
        scale=2.5,
        groups=groups,
        group_topk=group_topk,
        group_score=group_score,
        correction=correction,
    )

    extra = correction if corrected else np.zeros(E)
    rest = (3, kind, normalise, 2.5, groups, group_topk, group_score, extra)
    for token, row in enumerate(logits):
        expected = route_one(row, *rest)
        assert ids[token].tolist() == expected[0]
        np.testing.assert_allclose(weights[token], expected[1], rtol=1e-12)


def test_equal_scores_choose_the_smaller_ids():
    ids, weights = route(np.zeros((1, E)), top_k=2)

    assert ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(weights, 1 / E)


def test_sigmoids_that_are_all_zero_give_no_weight_and_no_nan():
    _, weights = route(np.full((1, E), -1e4), top_k=2, kind="sigmoid", normalise=True)

    assert weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("wrong", [dict(kind="relu"), dict(groups=4, group_score="mean")])
def test_unknown_words_are_named(wrong):
    with pytest.raises(ValueError, match=str(list(wrong.values())[-1])):
        route(np.zeros((1, E)), top_k=2, **wrong)


@pytest.mark.parametrize("tokens", [0, 1, 6])
def test_experts_sum_their_gated_mlps_by_weight(tokens):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(tokens, 5))
    gate, up, down = (rng.normal(size=shape) for shape in ((E, 7, 5), (E, 7, 5), (E, 5, 7)))
    ids, weights = route(rng.normal(size=(tokens, E)), top_k=3)

    y = experts(x, gate, up, down, ids, weights, "silu")

    expected = [
        sum(
            w * (down[e] @ gated(gate[e] @ row, up[e] @ row, "silu"))
            for e, w in zip(ids[t], weights[t], strict=True)
        )
        for t, row in enumerate(x)
    ]
    np.testing.assert_allclose(y, np.array(expected).reshape(tokens, 5), rtol=1e-10)
