import numpy as np
import pytest
from spaninfer_engine.logprobs import LogprobAt, SampledLogprobs, TokenLogprobs, num_values
from spaninfer_engine.request import TokenLogprob

ENTRIES = [
    TokenLogprob(3, -0.5, 1, ((3, -0.5), (7, -1.5))),
    TokenLogprob(9, -4.0, 5, ((1, -0.25), (2, -2.0))),
]


def filled(entries, count=2):
    found = TokenLogprobs.empty(len(entries), count)
    for at, entry in enumerate(entries):
        found.token_ids[at], found.logprobs[at], found.ranks[at] = (
            entry.token_id,
            entry.logprob,
            entry.rank,
        )
        found.top_ids[at], found.top[at] = zip(*entry.top, strict=True)
    return found


def test_it_reads_like_a_list_of_entries():
    found = filled(ENTRIES)

    assert list(found) == ENTRIES
    assert found == ENTRIES
    assert list(found[:]) == ENTRIES
    assert found[1:] == ENTRIES[1:]
    assert found[-1] == ENTRIES[-1]
    assert found != ENTRIES[:1]
    assert found != ENTRIES[::-1]


def test_values_are_counted_without_making_entries(monkeypatch):
    found = filled(ENTRIES)
    monkeypatch.setattr(TokenLogprobs, "__iter__", lambda _: pytest.fail("entries were made"))

    assert num_values(found) == num_values(ENTRIES) == 6
    assert num_values(()) == num_values(filled([])) == 0


def sampled(entries):
    """The same entries: one as it is, one as a row of a step's arrays with more columns."""
    rows = filled(entries)
    return SampledLogprobs((entries[0], LogprobAt(rows, 1, 2)))


def test_sampled_entries_read_like_a_list_of_them():
    found = sampled(ENTRIES)

    assert list(found) == ENTRIES
    assert found == ENTRIES
    assert found == tuple(ENTRIES)
    assert tuple(ENTRIES) == found
    assert found[1:] == ENTRIES[1:]
    assert found[-1] == ENTRIES[-1]
    assert found != ENTRIES[::-1]
    assert num_values(found) == num_values(ENTRIES)


def test_an_entry_has_as_many_likely_tokens_as_were_asked_for():
    rows = filled(ENTRIES)

    assert list(SampledLogprobs((LogprobAt(rows, 0, 1), LogprobAt(rows, 1, 0)))) == [
        TokenLogprob(3, -0.5, 1, ((3, -0.5),)),
        TokenLogprob(9, -4.0, 5, ()),
    ]


def test_an_entry_leaves_out_tokens_that_are_not_possible():
    rows = filled([TokenLogprob(3, -0.5, 1, ((3, -0.5), (-1, -np.inf)))])

    assert rows.entry(0, 2) == TokenLogprob(3, -0.5, 1, ((3, -0.5),))


def test_sampled_entries_join_without_being_made(monkeypatch):
    parts = sampled(ENTRIES), (), sampled(ENTRIES)[:1]
    monkeypatch.setattr(TokenLogprobs, "entry", lambda *_: pytest.fail("an entry was made"))

    joined = SampledLogprobs.joined(parts)

    monkeypatch.undo()
    assert joined == ENTRIES + ENTRIES[:1]
    assert SampledLogprobs.joined(((), ())) == ()


def test_parts_join_in_their_order():
    assert TokenLogprobs.joined([filled(ENTRIES), filled(ENTRIES[:1])]) == ENTRIES + ENTRIES[:1]


def test_an_index_beyond_the_end_is_refused():
    with pytest.raises(IndexError):
        filled(ENTRIES)[2]


def test_a_hundred_thousand_tokens_with_twenty_others_take_less_than_twenty_megabytes():
    found = TokenLogprobs.empty(100_000, 20)

    taken = sum(
        getattr(found, name).nbytes for name in ("token_ids", "logprobs", "ranks", "top_ids", "top")
    )
    assert taken < 20e6
    assert found.top.dtype == np.float32
