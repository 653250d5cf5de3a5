"""Accuracy on held-out pictures and clips: the share of questions answered rightly, by skill."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from spaninfer_engine import Engine, SamplingParams, UnsupportedTask

from spaninfer.bench.engine import Note, described
from spaninfer.bench.pictures.exam import SKILLS, Question, questions
from spaninfer.bench.records import circumstances, summary

_AT_ONCE = 16
_MAX_TOKENS = 48


def measure_accuracy(
    engine: Engine, skills: set[str], count: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield a record per skill: the share of `count` questions answered rightly, greedily.

    Raises UnsupportedTask for a model that reads only text.
    """
    if not engine.takes_media:
        raise UnsupportedTask(
            f"{engine.resolved.name} reads only text, and the questions are about images and "
            "videos: name a vision-language model"
        )
    for skill in (each for each in SKILLS if each in skills):
        right, waiting = 0, questions(skill, count)
        while asked := tuple(islice(waiting, _AT_ONCE)):
            found = answers(engine, asked)
            right += sum(
                question.asked.is_right(answer)
                for question, answer in zip(asked, found, strict=True)
            )
        fields = summary("% right", [100 * right / count])
        note(f"{skill}: {right} of {count}")
        about = {"benchmark": "accuracy", "workload": skill, **described(engine)}
        yield {**about, "questions": count, **fields, **circumstances(engine.resolved.device)}


def answers(engine: Engine, asked: tuple[Question, ...]) -> list[str]:
    """Return the model's greedy answers."""
    sampling = SamplingParams(temperature=0.0, max_tokens=_MAX_TOKENS)
    return [answer.text for answer in engine.chat([messages_of(each) for each in asked], sampling)]


def messages_of(question: Question) -> list[dict[str, Any]]:
    """Return the conversation that asks a question."""
    text = {"type": "text", "text": question.asked.question}
    return [{"role": "user", "content": [_part(question), text]}]


def _part(question: Question) -> dict[str, Any]:
    """Return the picture or the clip as a part of a message."""
    frames = question.frames
    if len(frames) == 1:
        return {"type": "image", "image": frames[0]}
    from spaninfer_multimodal import Video

    video = Video(frames, tuple(range(len(frames))), question.fps, len(frames))
    return {"type": "video", "video": video}
