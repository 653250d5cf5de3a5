"""Questions about pictures, and what counts as their answers."""

import numpy as np
import pytest
from spaninfer.bench.accuracy import messages_of
from spaninfer.bench.pictures.asked import Asked, found
from spaninfer.bench.pictures.exam import SKILLS, questions

COLOURS = ("red", "green", "blue")


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("The star is red.", True),
        ("RED!", True),
        ("The star is blue.", False),
        ("Red or blue.", False),
        ("It is reddish.", False),
        ("", False),
    ],
)
def test_an_answer_is_right_if_it_names_the_one_and_no_other(answer, is_right):
    asked = Asked("colour", "What colour is the star?", "The star is red.", "red", COLOURS)

    assert asked.is_right(answer) is is_right


def test_a_longer_phrase_hides_the_shorter_ones_in_it():
    zones = ("at the top", "on the left", "at the top left")

    assert found("It is at the top left.", zones) == {"at the top left"}
    assert found("It is at the top, on the left.", zones) == {"at the top", "on the left"}


@pytest.mark.parametrize("skill", SKILLS)
def test_questions_are_the_same_each_time_and_their_own_answers_are_right(skill):
    first, again = (list(questions(skill, 3)) for _ in range(2))

    for one, other in zip(first, again, strict=True):
        assert one.asked == other.asked
        assert np.array_equal(one.frames, other.frames)
        assert one.asked.is_right(one.asked.answer)
    assert len({each.frames.tobytes() for each in first}) == 3


def test_clips_are_sent_as_videos_that_last_as_long():
    (clip,) = questions("motion", 1)

    (part, _) = messages_of(clip)[0]["content"]

    assert part["type"] == "video"
    video = part["video"]
    assert len(video.frames) == len(clip.frames) in (4, 6, 8)
    assert video.times_s[-1] == pytest.approx((len(clip.frames) - 1) / clip.fps)


def test_a_model_that_reads_only_text_is_refused_in_a_sentence(refusal):
    asked = ("bench", "accuracy", "demo", "--only", "colour", "--questions", "1")

    assert "demo reads only text" in refusal(*asked, "--backend", "reference")
