"""Training sequences against the engine's rendering of the same conversations."""

from random import Random

import pytest
from tokenizers import Tokenizer

pytest.importorskip("spaninfer", reason="scenes are drawn by the package spaninfer")
np = pytest.importorskip("numpy")

from spaninfer.bench.accuracy import messages_of  # noqa: E402
from spaninfer.bench.pictures.atlas import Atlas  # noqa: E402
from spaninfer.bench.pictures.draw import frames_of  # noqa: E402
from spaninfer.bench.pictures.exam import Question  # noqa: E402
from spaninfer.bench.pictures.world import TRAINING, draw  # noqa: E402
from vision.conversations import NO_PICTURE, Writer, marks_of, rendered  # noqa: E402


class Tidy(Writer):
    """A writer that asks a question as it stands, behind its picture."""

    def question(self, drawn, asked):
        asked_with = f"{marks_of(drawn.scene)}{asked.question}"
        return self.conversation(rendered(asked_with, asked.answer), [drawn.scene])


@pytest.fixture(scope="module")
def writer(second_stage):
    return Tidy(Tokenizer.from_file(str(second_stage / "tokenizer.json")), Random(1))


@pytest.fixture(scope="module")
def engine(second_stage):
    pytest.importorskip("spaninfer_multimodal")
    from spaninfer_engine import Engine

    with Engine(
        second_stage, weights="dummy", backend="reference", memory="16MiB", max_len=512
    ) as running:
        yield running


@pytest.mark.parametrize("kind", ["shapes", "clip", "number"])
def test_ids_and_positions_are_those_of_the_engine(kind, writer, engine):
    drawn = draw(kind, Random(f"conversation/{kind}"), TRAINING)
    scene, asked = drawn.scene, drawn.asked[0]
    frames = frames_of(scene, Atlas(TRAINING.is_held_out, TRAINING.fonts))
    times = scene.times_s
    fps = (len(times) - 1) / times[-1] if scene.is_clip else 1.0

    written = writer.question(drawn, asked)
    prompt = engine.encode_chat(messages_of(Question(asked, frames, fps)))

    assert written.ids[: len(prompt)] == list(prompt)
    assert np.array_equal(np.array(written.positions[: len(prompt)]).T, prompt.media.positions)


def test_answers_are_targets_and_questions_are_not(writer):
    drawn = draw("shapes", Random(3), TRAINING)

    document = writer.question(drawn, drawn.asked[0])

    learned = [
        each for each, wanted in zip(document.ids, document.is_target, strict=True) if wanted
    ]
    decoded = writer.tokenizer.decode(learned, skip_special_tokens=False)
    assert decoded == f"{drawn.asked[0].answer}<|im_end|>"


@pytest.mark.parametrize("kind", ["shapes", "number", "word", "chart", "outside", "clip"])
def test_a_conversation_keeps_to_its_budget_and_shows_its_scene_once(kind, writer):
    for _ in range(10):
        document = writer.pictures([kind], 256)

        assert len(document.ids) <= 300
        ((_, places),) = document.scenes
        assert {document.ids[place] for place in places} <= writer.pads
        assert sum(each in writer.pads for each in document.ids) == len(places)
        assert len(places) <= 50


def test_a_question_without_a_picture_is_told_so(writer):
    document = writer.nothing_to_see()

    assert NO_PICTURE in writer.tokenizer.decode(document.ids)
    assert document.scenes == []
