import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from spaninfer_engine.cache.pool import SpanPool


def test_spans_are_handed_out_in_a_fixed_order_and_never_twice():
    pool = SpanPool(5)

    assert pool.take(2) == [0, 1]
    assert pool.take(3) == [2, 3, 4]
    assert pool.take(1) is None


def test_taking_more_than_there_is_takes_nothing():
    pool = SpanPool(3)

    assert pool.take(4) is None

    assert pool.num_available == 3


def test_a_shared_span_comes_back_with_its_last_holder():
    pool = SpanPool(1)
    pool.take(1)
    pool.share([0])

    pool.give_back([0])
    assert pool.num_available == 0
    pool.give_back([0])

    assert pool.num_available == 1


def test_a_span_of_a_step_in_flight_rests_until_that_step_has_finished():
    pool = SpanPool(1)
    pool.take(1)
    pool.mark_planned(1)
    pool.mark_planned(2)
    pool.give_back([0])

    assert (pool.num_available, pool.num_pending_free) == (0, 1)
    pool.mark_finished(1)
    assert (pool.num_available, pool.num_pending_free) == (0, 1)
    pool.mark_finished(2)

    assert (pool.num_available, pool.num_pending_free) == (1, 0)


def test_a_span_given_back_while_nothing_is_in_flight_is_available_at_once():
    pool = SpanPool(1)
    pool.mark_planned(1)
    pool.take(1)
    pool.mark_finished(1)

    pool.give_back([0])

    assert pool.take(1) == [0]


def test_a_pending_free_span_can_be_shared_and_is_then_not_freed_by_the_step():
    pool = SpanPool(1)
    pool.take(1)
    pool.publish([0], [b"a"])
    pool.mark_planned(1)
    pool.give_back([0])

    pool.share(pool.find_run([b"a"]))
    pool.mark_finished(1)

    assert (pool.num_in_use, pool.num_available) == (1, 0)


def test_a_published_span_is_kept_and_found_until_it_is_handed_out_for_new_content():
    pool = SpanPool(2)
    pool.take(2)
    pool.publish([1], [b"kept"])
    pool.give_back([0, 1])

    assert pool.find(b"kept") == 1
    assert pool.take(1) == [0]  # what is free goes first
    assert pool.find(b"kept") == 1
    assert pool.take(1) == [1]

    assert pool.find(b"kept") is None
    pool.check()


def test_of_kept_spans_the_longest_unused_is_handed_out_first():
    pool = SpanPool(3)
    pool.take(3)
    for span, label in enumerate((b"a", b"b", b"c")):
        pool.publish([span], [label])
    pool.give_back([2, 1, 0])
    pool.share([2])
    pool.give_back([2])

    assert pool.take(3) == [1, 0, 2]


def test_a_second_span_with_the_same_content_stays_unpublished():
    pool = SpanPool(2)
    pool.take(2)

    pool.publish([0], [b"same"])
    pool.publish([1], [b"same"])
    pool.give_back([0, 1])

    assert (pool.find(b"same"), pool.num_cached) == (0, 1)
    pool.check()


def test_giving_back_what_is_not_held_is_a_bug_that_is_found():
    pool = SpanPool(1)

    with pytest.raises(AssertionError, match="more often"):
        pool.give_back([0])


def test_steps_that_finish_out_of_order_are_a_bug_that_is_found():
    pool = SpanPool(1)
    pool.mark_planned(1)
    pool.mark_planned(2)
    pool.mark_finished(2)

    with pytest.raises(AssertionError, match="out of order"):
        pool.mark_finished(1)


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls, against a model that remembers holders and steps in plain sets."""

    def __init__(self):
        super().__init__()
        self.pool = SpanPool(6)
        self.held = []  # a span as often as it has holders
        self.planned = self.finished = 0
        self.in_use = {}  # span -> newest step planned while it was held
        self.labels = {}

    @rule(count=st.integers(1, 3))
    def take(self, count):
        spans = self.pool.take(count)
        if spans is None:
            return
        for span in spans:
            assert span not in self.held
            assert self.in_use.get(span, 0) <= self.finished, "handed out while in use"
            self.held.append(span)
            self.labels = {k: v for k, v in self.labels.items() if v != span}

    @precondition(lambda self: self.held)
    @rule(data=st.data(), label=st.one_of(st.none(), st.sampled_from([b"x", b"y", b"z"])))
    def give_back(self, data, label):
        span = data.draw(st.sampled_from(self.held))
        if label is not None and label not in self.labels and span not in self.labels.values():
            self.labels[label] = span
            self.pool.publish([span], [label])
        self.held.remove(span)
        self.pool.give_back([span])

    @rule(label=st.sampled_from([b"x", b"y", b"z"]))
    def find_and_share(self, label):
        span = self.pool.find(label)
        assert span == self.labels.get(label)
        if span is not None:
            self.pool.share([span])
            self.held.append(span)

    @rule()
    def plan(self):
        self.planned += 1
        self.pool.mark_planned(self.planned)
        self.in_use.update(dict.fromkeys(self.held, self.planned))

    @precondition(lambda self: self.planned > self.finished)
    @rule()
    def finish(self):
        self.finished += 1
        self.pool.mark_finished(self.finished)

    @invariant()
    def nothing_is_lost(self):
        self.pool.check()
        assert self.pool.num_in_use == len(set(self.held))
        if self.planned == self.finished:
            assert self.pool.num_pending_free == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_forgotten_content_is_found_no_more_and_its_spans_are_free_or_stay_in_use():
    pool = SpanPool(4)
    used, cached = pool.take(2)
    pool.publish([used, cached], [b"a", b"b"])
    pool.give_back([cached])

    pool.forget()

    assert pool.find_run([b"a", b"b"]) == []
    assert pool.find(b"b") is None
    assert (pool.num_cached, pool.num_in_use, pool.num_available) == (0, 1, 3)
    pool.check()
    pool.publish([used], [b"a"])
    assert pool.find(b"a") == used
