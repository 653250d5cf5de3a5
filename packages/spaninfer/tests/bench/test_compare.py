import pytest
from spaninfer.bench.compare import compare, titles
from spaninfer.bench.records import summary


def record(workload, unit, *runs, **more):
    return {"benchmark": "engine", "workload": workload, **summary(unit, runs), **more}


@pytest.mark.parametrize(
    ("unit", "before", "after", "gain"),
    [("ms", 4.0, 2.0, 2.0), ("us", 2.0, 4.0, 0.5), ("tok/s", 100.0, 150.0, 1.5)],
)
def test_the_gain_says_how_many_times_as_fast_whatever_the_unit(unit, before, after, gain):
    [pair] = compare([record("a", unit, before)], [record("a", unit, after)]).pairs

    assert pair.gain == gain


def test_a_difference_is_clear_where_the_ranges_lie_apart():
    first = [record("near", "ms", 1.0, 3.0), record("far", "ms", 1.0, 2.0)]
    second = [record("near", "ms", 2.5, 4.0), record("far", "ms", 2.5, 4.0)]

    assert [pair.is_clear for pair in compare(first, second).pairs] == [False, True]
    assert [pair.is_clear for pair in compare(second, first).pairs] == [False, True]


def test_records_are_matched_by_what_was_measured_and_not_by_place():
    first = [record("a", "ms", 1.0, commit="x"), record("b", "ms", 2.0)]
    second = [record("c", "ms", 3.0), record("b", "ms", 4.0, device="other"), first[0]]

    found = compare(first, second)

    assert [pair.after["workload"] for pair in found.pairs] == ["a", "b"]
    assert found.only_before == ()
    assert found.only_after == (second[0],)


def test_titles_leave_out_what_all_records_share_unless_there_is_only_one():
    records = [record("a", "ms", 1.0, model="m"), record("b", "ms", 1.0, model="m")]

    assert titles(records) == ["a", "b"]
    assert titles(records[:1]) == ["a m"]


def test_a_title_does_not_list_the_instructions_of_a_peer():
    records = [
        record("a", "tok/s", 1.0, program="engine"),
        record("a", "tok/s", 2.0, program="peer", peer_instructions="AVX2 FMA REPACK"),
    ]

    assert titles(records) == ["engine", "peer"]


def test_of_what_was_measured_twice_the_last_counts():
    found = compare([record("a", "ms", 9.0), record("a", "ms", 4.0)], [record("a", "ms", 2.0)])

    assert [pair.gain for pair in found.pairs] == [2.0]
