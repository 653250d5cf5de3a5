import numpy as np
import pytest
from spaninfer_op_reference import top_logprobs
from spaninfer_op_reference.candidates import smallest

torch = pytest.importorskip("torch", reason="torch is the second opinion")


@pytest.mark.parametrize("n", [0, 1, 5])
def test_sampled_and_top_tokens_are_reported_as_torch_computes_them(n):
    logits = np.random.default_rng(0).normal(size=(4, 300), scale=3)
    ids = np.array([0, 299, 17, int(logits[3].argmax())])

    report = top_logprobs(logits, ids, n)

    logs = torch.from_numpy(logits).log_softmax(-1)
    top, top_ids = logs.topk(n)
    np.testing.assert_allclose(report.chosen, logs[range(4), ids], rtol=1e-12)
    np.testing.assert_array_equal(report.top_ids, top_ids)
    np.testing.assert_allclose(report.top, top, rtol=1e-12)
    assert report.rank.tolist() == [1 + int((logs[i] > logs[i, ids[i]]).sum()) for i in range(4)]
    assert report.rank[3] == 1


def test_equal_tokens_rank_by_id():
    report = top_logprobs(np.zeros((1, 4)), np.array([2]), 3)

    assert report.rank.tolist() == [3]
    assert report.top_ids.tolist() == [[0, 1, 2]]


def test_no_rows_are_reported_as_none():
    report = top_logprobs(np.zeros((0, 9), np.float32), np.zeros(0, np.int64), 2)

    assert [part.shape[0] for part in report] == [0, 0, 0, 0]


def test_a_row_of_nan_is_reported_as_nan_and_others_as_they_are():
    logits = np.random.default_rng(1).normal(size=(3, 300))
    ids = np.array([0, 5, 299])
    expected = top_logprobs(logits, ids, 20)
    logits[1, 7] = np.nan

    report = top_logprobs(logits, ids, 20)

    assert np.isnan(report.chosen[1])
    assert np.isnan(report.top[1]).all()
    for part, whole in zip(report, expected, strict=True):
        np.testing.assert_array_equal(part[[0, 2]], whole[[0, 2]])


def test_nan_is_never_among_the_smallest_while_there_are_numbers():
    keys = np.array([np.nan, 3.0, 1.0, np.nan, 2.0])

    assert smallest(keys, 2).tolist() == [2, 4]
    assert smallest(keys, 4)[:3].tolist() == [2, 4, 1]
