"""Host slots: which one is evicted."""

from __future__ import annotations

from math import inf

from setting_clock import SetClock
from spaninfer_engine.cache.host_slots import HostSlots
from spaninfer_engine.cache.ttl import FOREVER, TimeToLive


def filled(*hashes: bytes, ttl: TimeToLive = FOREVER) -> HostSlots:
    slots = HostSlots(len(hashes), ttl)
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


def test_a_span_unused_for_its_time_to_live_gives_its_slot_back() -> None:
    clock = SetClock()
    slots = filled(b"a", b"b", ttl=TimeToLive(10, clock))
    clock.pass_s(6)
    slots.touch(b"a")
    assert slots.time_left_s == 4
    clock.pass_s(4)

    assert slots.expire() == 1

    assert (slots.find(b"a") is None, slots.find(b"b") is None) == (False, True)
    assert (slots.num_available, slots.num_held) == (2, 1)
    assert slots.time_left_s == 6
    slots.check()


def test_a_pinned_span_expires_after_its_last_pin_and_time_to_live() -> None:
    clock = SetClock()
    slots = filled(b"a", ttl=TimeToLive(10, clock))
    slots.pin(b"a")
    clock.pass_s(100)

    assert (slots.expire(), slots.time_left_s) == (0, inf)
    slots.unpin(b"a")
    assert slots.expire() == 0
    clock.pass_s(10)
    assert slots.expire() == 1
    slots.check()


def test_nothing_expires_without_a_time_to_live() -> None:
    slots = filled(b"a", ttl=FOREVER)

    assert (slots.expire(), slots.time_left_s) == (0, inf)
