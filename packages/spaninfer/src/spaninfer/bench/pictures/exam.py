"""Held-out questions by skill: other seeds, shades, fonts and sizes than training has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer.bench.pictures.asked import Asked
from spaninfer.bench.pictures.atlas import Atlas
from spaninfer.bench.pictures.draw import frames_of
from spaninfer.bench.pictures.scene import Scene
from spaninfer.bench.pictures.shape_scenes import NUMBERS
from spaninfer.bench.pictures.world import HELD_OUT, draw


@dataclass(frozen=True, slots=True)
class Skill:
    """A kind of scene, the skill that its questions are marked with, and which of them count."""

    scene: str
    marked: str
    counts: Callable[[Asked], bool] = lambda _: True


SKILLS: Final[Mapping[str, Skill]] = MappingProxyType(
    {
        "colour": Skill("shapes", "colour"),
        "shape": Skill("shapes", "shape"),
        "count": Skill("shapes", "count"),
        "count to five": Skill("shapes", "count", lambda asked: asked.expected in NUMBERS[1:6]),
        "position": Skill("shapes", "position"),
        "number": Skill("number", "number"),
        "two-digit number": Skill("number", "number", lambda asked: len(asked.expected) == 2),
        "word": Skill("word", "word"),
        "chart": Skill("chart", "chart"),
        "motion": Skill("clip", "motion"),
        "outside": Skill("outside", "outside"),
    }
)

_MAX_ZOOM = 3.0
_MAX_GRAIN = 0.02


@dataclass(frozen=True, slots=True)
class Question:
    """A question about frames[frames height width 3], which `fps` show in a second."""

    asked: Asked
    frames: NDArray[np.uint8]
    fps: float


def questions(skill: str, count: int) -> Iterator[Question]:
    """Yield `count` questions of a skill of SKILLS, the same on every machine."""
    atlas = Atlas(HELD_OUT.is_held_out, HELD_OUT.fonts)
    for number in range(count):
        rng = Random(f"exam/{skill}/{number}")
        scene, asked = _drawn(SKILLS[skill], rng)
        frames = frames_of(
            scene,
            atlas,
            zoom=rng.uniform(1.0, _MAX_ZOOM),
            grain=rng.uniform(0, _MAX_GRAIN),
            seed=number,
        )
        times = scene.times_s
        fps = (len(times) - 1) / (times[-1] - times[0]) if scene.is_clip else 1.0
        yield Question(asked, frames, fps)


def _drawn(skill: Skill, rng: Random) -> tuple[Scene, Asked]:
    """Return a scene that can be asked about for a skill, and one such question."""
    while True:
        drawn = draw(skill.scene, rng, HELD_OUT)
        fitting = [each for each in drawn.asked if each.skill == skill.marked]
        fitting = [each for each in fitting if skill.counts(each)]
        if fitting:
            return drawn.scene, rng.choice(fitting)
