"""Frozen garbage collection: objects from before an engine starts are skipped, later ones
collected.
"""

import gc
import weakref

import pytest
from assembled import wait_for_other_engines
from spaninfer_engine.core.gc_freeze import YOUNG, GcFreeze


@pytest.fixture(autouse=True)
def _nobody_else_spares():
    wait_for_other_engines()


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.me = self


def test_dropped_cycles_of_before_wait_until_the_last_one_that_spares_is_closed():
    before = Knot()
    is_there = weakref.ref(before)
    first, second = GcFreeze(), GcFreeze()

    del before
    gc.collect()
    assert is_there() is not None

    first.close()
    first.close()
    gc.collect()
    assert is_there() is not None

    second.close()
    gc.collect()
    assert is_there() is None


def test_cycles_that_come_later_are_collected():
    with GcFreeze():
        is_there = weakref.ref(Knot())

        gc.collect()

        assert is_there() is None


def test_the_collector_looks_at_young_objects_less_often_until_the_last_one_is_closed():
    before = gc.get_threshold()
    first, second = GcFreeze(), GcFreeze()
    assert gc.get_threshold() == (YOUNG, *before[1:])

    first.close()
    first.close()
    assert gc.get_threshold()[0] == YOUNG

    second.close()
    assert gc.get_threshold() == before


def test_a_collector_that_never_looks_by_itself_stays_so():
    before = gc.get_threshold()
    gc.set_threshold(0, 5, 5)
    try:
        with GcFreeze():
            assert gc.get_threshold() == (0, 5, 5)
    finally:
        gc.set_threshold(*before)
