"""Held-out questions by skill: other seeds, shades, fonts and sizes than training has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from spaninfer.bench.pictures.world import HELD_OUT, draw

SKILLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "colour": "shapes",
        "shape": "shapes",
        "count": "shapes",
        "position": "shapes",
        "number": "number",
        "word": "word",
        "chart": "chart",
        "motion": "clip",
        "outside": "outside",
    }
)
"""The kind of scene that asks for a skill."""

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
        scene, asked = _drawn(skill, rng)
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


def _drawn(skill: str, rng: Random) -> tuple[Scene, Asked]:
    """Return a scene that can be asked about for a skill, and one such question."""
    while True:
        drawn = draw(SKILLS[skill], rng, HELD_OUT)
        fitting = [asked for asked in drawn.asked if asked.skill == skill]
        if fitting:
            return drawn.scene, rng.choice(fitting)
