from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from spaninfer_engine.schedule.texts import steps_of


def test_the_longest_texts_come_first_and_share_steps_up_to_the_token_budget() -> None:
    steps = steps_of([5, 40, 20, 5, 20], step_tokens=40, max_texts=8)

    assert steps == [[1], [2, 4], [0, 3]]


def test_a_text_longer_than_the_budget_has_a_step_of_its_own() -> None:
    assert steps_of([1, 100, 1], step_tokens=10, max_texts=8) == [[1], [0, 2]]


def test_nothing_to_embed_takes_no_step() -> None:
    assert steps_of([], step_tokens=10, max_texts=8) == []


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 60), st.integers(1, 5))
def test_every_text_is_in_one_step_and_no_step_is_over_a_limit(
    lengths: list[int], step_tokens: int, max_texts: int
) -> None:
    steps = steps_of(lengths, step_tokens=step_tokens, max_texts=max_texts)

    assert sorted(number for step in steps for number in step) == list(range(len(lengths)))
    for step in steps:
        assert 1 <= len(step) <= max_texts
        assert len(step) == 1 or sum(lengths[number] for number in step) <= step_tokens
