import numpy as np
import pytest
from entries import arrays_of, sampled
from spaninfer_engine.request.logprobs import (
    LogprobAt,
    SampledLogprobs,
    StepLogprobs,
    TokenLogprobs,
    gathered,
    num_values,
)
from spaninfer_engine.request.request import TokenLogprob

ENTRIES = [
    TokenLogprob(3, -0.5, 1, ((3, -0.5), (7, -1.5))),
    TokenLogprob(9, -4.0, 5, ((1, -0.25), (2, -2.0))),
]


def test_it_reads_like_a_list_of_entries():
    found = arrays_of(ENTRIES, 2)

    assert list(found) == ENTRIES
    assert found == ENTRIES
    assert list(found[:]) == ENTRIES
    assert found[1:] == ENTRIES[1:]
    assert found[-1] == ENTRIES[-1]
    assert found != ENTRIES[:1]
    assert found != ENTRIES[::-1]


def test_values_are_counted_without_making_entries(monkeypatch):
    found = arrays_of(ENTRIES, 2)
    monkeypatch.setattr(TokenLogprobs, "__iter__", lambda _: pytest.fail("entries were made"))

    assert num_values(found) == num_values(ENTRIES) == 6
    assert num_values(()) == num_values(arrays_of([])) == 0


def test_sampled_entries_read_like_a_list_of_them():
    found = sampled(*ENTRIES)

    assert list(found) == ENTRIES
    assert found == ENTRIES
    assert found == tuple(ENTRIES)
    assert tuple(ENTRIES) == found
    assert found[1:] == ENTRIES[1:]
    assert found[-1] == ENTRIES[-1]
    assert found != ENTRIES[::-1]
    assert num_values(found) == num_values(ENTRIES)


def test_an_entry_has_as_many_likely_tokens_as_were_asked_for():
    rows = arrays_of(ENTRIES, 2)

    assert list(SampledLogprobs((LogprobAt(rows, 0, 1), LogprobAt(rows, 1, 0)))) == [
        TokenLogprob(3, -0.5, 1, ((3, -0.5),)),
        TokenLogprob(9, -4.0, 5, ()),
    ]


def test_an_entry_leaves_out_tokens_that_are_not_possible():
    rows = arrays_of([TokenLogprob(3, -0.5, 1, ((3, -0.5), (-1, -np.inf)))], 2)

    assert rows.entry(0, 2) == TokenLogprob(3, -0.5, 1, ((3, -0.5),))


def test_sampled_entries_join_without_being_made(monkeypatch):
    parts = sampled(*ENTRIES), (), sampled(*ENTRIES)[:1]
    monkeypatch.setattr(TokenLogprobs, "entry", lambda *_: pytest.fail("an entry was made"))

    joined = SampledLogprobs.joined(parts)

    monkeypatch.undo()
    assert joined == ENTRIES + ENTRIES[:1]
    assert SampledLogprobs.joined(((), ())) == ()


def test_entries_from_arrays_of_many_steps_are_gathered_in_order():
    first, second = arrays_of(ENTRIES, 2), arrays_of(ENTRIES[:1], 2)
    places = [LogprobAt(first, 1, 2), LogprobAt(first, 0, 1), LogprobAt(second, 0, 2)]

    found = gathered(places)

    assert list(map(found.entry, range(3), (2, 1, 2))) == [place.entry for place in places]


def test_arrays_of_a_step_are_made_once_when_somebody_looks():
    made = []
    step = StepLogprobs(lambda: made.append(arrays_of(ENTRIES, 2)) or made[-1])
    found = SampledLogprobs((LogprobAt(step, 0, 2), LogprobAt(step, 1, 2)))
    assert num_values(found) == num_values(ENTRIES)
    assert not made

    assert list(found) == ENTRIES
    assert list(gathered(found.places[::-1])) == ENTRIES[::-1]
    assert len(made) == 1


def test_gathered_entries_are_as_long_as_the_longest():
    few = arrays_of([TokenLogprob(9, -4.0, 5, ((1, -0.25),))], 1)
    found = gathered([LogprobAt(few, 0, 1), LogprobAt(arrays_of(ENTRIES, 2), 0, 2)])

    assert list(found) == [few[0], ENTRIES[0]]
    assert gathered([LogprobAt(few, 0, 0)]).top.shape == (1, 0)
    assert list(gathered([LogprobAt(few, 0, 5)])) == list(few)  # of a vocabulary of one token


def test_parts_join_in_their_order():
    assert (
        TokenLogprobs.joined([arrays_of(ENTRIES, 2), arrays_of(ENTRIES[:1], 2)])
        == ENTRIES + ENTRIES[:1]
    )


def test_an_index_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        arrays_of(ENTRIES, 2)[2]


def test_a_hundred_thousand_tokens_with_twenty_others_take_less_than_twenty_megabytes():
    found = TokenLogprobs.empty(100_000, 20)

    taken = sum(
        getattr(found, name).nbytes for name in ("token_ids", "logprobs", "ranks", "top_ids", "top")
    )
    assert taken < 20e6
    assert found.top.dtype == np.float32
