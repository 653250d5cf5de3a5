"""Slots of host memory: which of them is handed out anew."""

from __future__ import annotations

from spaninfer_engine.cache.host_slots import HostSlots


def filled(*hashes: bytes) -> HostSlots:
    slots = HostSlots(len(hashes))
    for span_hash in hashes:
        slot = slots.take()
        assert slot is not None
        slots.put(span_hash, slot)
    return slots


def test_the_slot_that_was_used_longest_ago_is_handed_out_anew() -> None:
    slots = filled(b"a", b"b", b"c")
    of_b = slots.find(b"b")

    slots.touch(b"a")

    assert slots.take() == of_b
    assert slots.find(b"b") is None
    assert slots.find(b"a") is not None
    slots.check(num_filled=1)


def test_a_pinned_slot_is_not_handed_out_until_it_is_unpinned_as_often() -> None:
    slots = filled(b"a", b"b")
    of_a, of_b = slots.find(b"a"), slots.find(b"b")
    slots.pin(b"a")
    slots.pin(b"a")

    assert slots.take() == of_b
    assert slots.take() is None
    slots.unpin(b"a")
    assert slots.take() is None
    slots.unpin(b"a")
    assert slots.take() == of_a


def test_a_slot_that_could_not_be_filled_is_free_again() -> None:
    slots = filled(b"a")
    slot = slots.take()
    assert slot is not None
    assert slots.num_available == 0

    slots.give_back(slot)

    assert slots.num_available == 1
    assert slots.num_held == 0
    slots.check()
