import numpy as np
import pytest
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.step.plan import NewSequence, TableUpdate
from spaninfer_engine.step.sequences import NO_SECOND, Sequences


def _entry(seq_id: int, *token_ids: int) -> NewSequence:
    return NewSequence(seq_id, token_ids, SamplingParams(), seed=0)


def test_sampled_tokens_follow_the_prompt():
    requests = Sequences(1, max_len=8, span_len=4, num_rows=2)
    requests.enter(_entry(7, 5, 6))

    requests.write([7], [2], [9])

    assert requests.known([7], [3])[0].tolist() == [5, 6, 9]


def test_a_token_sampled_behind_the_last_position_has_a_place():
    requests = Sequences(1, max_len=2, span_len=4, num_rows=1)
    requests.enter(_entry(7, 5, 6))

    requests.write([7], [2], [9])

    assert requests.known([7], [3])[0].tolist() == [5, 6, 9]


def test_a_token_of_a_request_that_has_left_is_dropped():
    requests = Sequences(1, max_len=8, span_len=4, num_rows=2)
    requests.enter(_entry(7, 5))
    requests.enter(_entry(8, 6))
    requests.leave(7)

    requests.write([7, 8], [1, 1], [9, 10])

    assert requests.known([8], [2])[0].tolist() == [6, 10]
    requests.enter(_entry(9, 4, 3))
    assert requests.known([9], [2])[0].tolist() == [4, 3]


def test_it_is_remembered_how_many_tokens_are_known():
    requests = Sequences(1, max_len=8, span_len=4, num_rows=1)
    requests.enter(_entry(7, 5, 6))
    requests.enter(_entry(8, 5))

    requests.write([7], [2], [9])

    assert requests.num_known[requests.rows([7, 8])].tolist() == [3, 1]
    assert 7 in requests
    requests.leave(7)
    assert 7 not in requests


def test_more_requests_than_expected_find_room_and_keep_what_they_had():
    requests = Sequences(2, max_len=8, span_len=4, num_rows=1)

    for seq_id in range(5):
        requests.enter(_entry(seq_id, seq_id + 10))
        requests.update_table(TableUpdate(seq_id, 1, 0, (seq_id + 20,)))

    rows = requests.rows(range(5))
    assert len(set(rows.tolist())) == 5
    assert requests.tokens[rows, 0].tolist() == [10, 11, 12, 13, 14]
    assert requests.tables[1][rows, 0].tolist() == [20, 21, 22, 23, 24]


def test_a_row_that_was_left_is_taken_again():
    requests = Sequences(1, max_len=8, span_len=4, num_rows=1)
    requests.enter(_entry(1, 5))
    requests.leave(1)

    requests.enter(_entry(2, 6))

    assert len(requests) == 1
    assert len(requests.tokens) == 1


def test_a_table_grows_from_any_index():
    requests = Sequences(1, max_len=16, span_len=4, num_rows=1)
    requests.enter(_entry(1, 5))

    requests.update_table(TableUpdate(1, 0, 0, (3, 4)))
    requests.update_table(TableUpdate(1, 0, 2, (9,)))

    np.testing.assert_array_equal(requests.tables[0][0], [3, 4, 9, 0])


def test_texts_lie_in_the_first_rows_over_those_of_the_step_before():
    texts = Sequences(0, max_len=8, span_len=4, num_rows=2)

    texts.put_texts([np.array([9, 9, 9]), np.array([8, 8])], [1, None])
    texts.put_texts([np.array([5]), np.array([6, 7]), np.array([4, 3, 2])], [None, 1, None])

    rows = [texts.tokens[row, :length].tolist() for row, length in enumerate((1, 2, 3))]
    assert rows == [[5], [6, 7], [4, 3, 2]]
    assert texts.second_from[:3].tolist() == [NO_SECOND, 1, NO_SECOND]


def test_texts_take_no_rows_of_sequences():
    sequences = Sequences(1, max_len=8, span_len=4, num_rows=2)
    sequences.enter(_entry(7, 5))

    with pytest.raises(AssertionError, match="rows of sequences"):
        sequences.put_texts([np.array([5])], [None])
