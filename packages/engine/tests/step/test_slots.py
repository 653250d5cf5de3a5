import pytest
from spaninfer_engine.step.slots import SlotAllocator


def test_a_request_keeps_its_row_from_step_to_step():
    residents = SlotAllocator(3)
    rows, placed = residents.place([7, 8])

    again, placed_again = residents.place([8, 7])

    assert placed == list(zip([7, 8], rows, strict=True))
    assert again == rows[::-1]
    assert placed_again == []


def test_a_step_takes_rows_from_those_that_do_not_take_part():
    residents = SlotAllocator(3)
    residents.place([1, 2, 3])

    rows, placed = residents.place([3, 4, 5])

    assert [seq_id for seq_id, _ in placed] == [4, 5]
    assert len(set(rows)) == 3
    assert residents.find(1) is residents.find(2) is None


def test_those_that_came_last_stay_longest():
    residents = SlotAllocator(3)
    residents.place([1, 2, 3])

    residents.place([4])

    assert residents.find(1) is None
    assert None not in (residents.find(2), residents.find(3))


def test_a_row_that_was_left_is_taken_first():
    residents = SlotAllocator(2)
    rows, _ = residents.place([1, 2])
    residents.leave(2)
    residents.leave(9)  # has none

    assert residents.place([1, 3]) == (rows, [(3, rows[1])])


def test_more_slices_than_rows_are_our_own_mistake():
    with pytest.raises(AssertionError, match="more slices than there are rows"):
        SlotAllocator(2).place([1, 2, 3])
