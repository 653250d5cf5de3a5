"""Questions about pictures, and the bundled model's answers."""

import json

import numpy as np
import pytest
from spaninfer.bench.accuracy import answers, measure_accuracy, messages_of
from spaninfer.bench.pictures.asked import Asked, found
from spaninfer.bench.pictures.exam import SKILLS, Question, questions
from spaninfer_engine import Engine

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def engine():
    with Engine("demo", backend="cpu", dtype="float32", memory="32MiB") as running:
        yield running


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


def test_counting_to_five_and_numbers_of_two_digits_are_asked_for_by_themselves():
    counted = {each.asked.expected for each in questions("count to five", 40)}
    read = [each.asked.expected for each in questions("two-digit number", 10)]

    assert counted == {"one", "two", "three", "four", "five"}
    assert all(10 <= int(number) <= 99 for number in read)


def test_clips_are_sent_as_videos_that_last_as_long():
    (clip,) = questions("motion", 1)

    (part, _) = messages_of(clip)[0]["content"]

    assert part["type"] == "video"
    video = part["video"]
    assert len(video.frames) == len(clip.frames) in (4, 6, 8)
    assert video.times_s[-1] == pytest.approx((len(clip.frames) - 1) / clip.fps)


def test_who_does_not_see_the_number_does_not_read_it(engine):
    asked = tuple(questions("number", 6))
    hidden = tuple(Question(each.asked, np.full_like(each.frames, 255), 1.0) for each in asked)

    right, blind = (
        sum(
            each.asked.is_right(text)
            for each, text in zip(asked, answers(engine, shown), strict=True)
        )
        for shown in (asked, hidden)
    )

    assert right >= 5
    assert blind == 0


def test_the_bundled_model_answers_most_questions_of_each_skill(engine):
    notes = []

    records = list(measure_accuracy(engine, set(SKILLS), 4, notes.append))

    assert [record["workload"] for record in records] == list(SKILLS)
    assert {record["unit"] for record in records} == {"% right"}
    assert all(record["questions"] == 4 for record in records)
    assert np.mean([record["median"] for record in records]) >= 85
    assert notes[0].startswith("colour: ")


def test_the_command_prints_records_that_can_be_compared(call, tmp_path):
    asked = ("bench", "accuracy", "--only", "colour", "--questions", "2")

    result = call(*asked, "--backend", "cpu", "--quantize", "int8")

    assert result.exit_code == 0, result.output
    (record,) = map(json.loads, result.stdout.splitlines())
    assert record["benchmark"] == "accuracy"
    assert record["model"] == "demo"
    assert record["weights"] == "int8"
    file = tmp_path / "records.jsonl"
    file.write_text(result.stdout)
    assert "% right" in call("bench", "compare", str(file)).stdout
