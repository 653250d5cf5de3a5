"""Pictures from outside the world: textures, blots and heaps of odd outlines.

They stand in for photographs, which cannot be drawn: many scales of detail, shaded grounds, colours
between the named ones.
"""

from __future__ import annotations

import math
from random import Random

from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.canvas import Canvas, Look, Pose
from spaninfer.bench.pictures.colours import RGB
from spaninfer.bench.pictures.scene import NUM_SPRITES, NUM_WAVES
from spaninfer.bench.pictures.shapes import SHAPES

ANSWER = (
    "I do not know what this shows. I only know shapes, colours, numbers, words and bar charts."
)
_KEY = "i do not know"

QUESTIONS = (
    *("What is this?", "What do you see?", "Describe the picture.", "What is in the picture?"),
    *("What number is this?", "What word is this?", "How many shapes are there?"),
    *(
        "What shape is this?",
        "What colour is it?",
        "Which bar is the tallest?",
        "What does it say?",
    ),
    *("Where is the red circle?", "What happens in the video?", "Who is in the picture?"),
    *("What animal is this?", "How many people are there?", "Where was this taken?"),
)


def outside_scene(canvas: Canvas) -> Drawn:
    """Return a picture that the model should say it does not know."""
    rng = canvas.rng
    canvas.soft = rng.uniform(0.7, 4.0)
    tones = [_tone(rng) for _ in range(5)]
    angle = rng.uniform(0, 2 * math.pi)
    reach = rng.uniform(0.5, 1.5) * max(canvas.height, canvas.width)
    canvas.set_ground(tones[0], tones[1], math.cos(angle) / reach, math.sin(angle) / reach)
    if rng.random() < 0.75:
        _texture(canvas)
    if rng.random() < 0.75 or not canvas.waves:
        _heap(canvas, tones)
    picked = rng.sample(QUESTIONS, 5)
    asked = [Asked("outside", question, ANSWER, _KEY, (_KEY,)) for question in picked]
    return Drawn(canvas.scene(), tuple(asked))


def _tone(rng: Random) -> RGB:
    """Return any colour, muted ones more often."""
    grey = rng.random()
    return _near(rng, (grey, grey, grey), rng.choice((0.1, 0.25, 0.6)))


def _near(rng: Random, tone: RGB, spread: float = 0.2) -> RGB:
    """Return a colour near another."""
    red, green, blue = (min(1.0, max(0.0, value + rng.uniform(-spread, spread))) for value in tone)
    return red, green, blue


def _texture(canvas: Canvas) -> None:
    """Add waves of many lengths, longer ones higher, bent and sharpened into blots."""
    rng = canvas.rng
    slope, strength = rng.uniform(0.3, 1.2), rng.uniform(0.05, 0.25)
    tint = [rng.uniform(0.5, 1) for _ in range(3)]
    heading, spread = rng.uniform(0, math.pi), rng.choice((0.2, math.pi))
    for _ in range(NUM_WAVES):
        length = math.exp(rng.uniform(math.log(3), math.log(200)))
        high = strength * (length / 60) ** slope
        amplitudes = tuple(high * share * rng.uniform(0.7, 1.3) for share in tint)
        canvas.wave(length, heading + rng.uniform(-spread, spread), amplitudes)
    if rng.random() < 0.5:
        canvas.ground["hard"] = rng.uniform(2, 20)
    if rng.random() < 0.6:
        canvas.ground["swirl"] = rng.uniform(2, 25)
        canvas.ground["swirl_x"] = 2 * math.pi / rng.uniform(20, 150)
        canvas.ground["swirl_y"] = 2 * math.pi / rng.uniform(20, 150)


def _heap(canvas: Canvas, tones: list[RGB]) -> None:
    """Pile up stretched outlines of any colour, one over the other."""
    rng = canvas.rng
    for _ in range(rng.randint(7, NUM_SPRITES)):
        size = math.exp(rng.uniform(math.log(8), math.log(110)))
        stretch = math.exp(rng.uniform(-0.9, 0.9))
        at = rng.uniform(0, canvas.width), rng.uniform(0, canvas.height)
        canvas.soft = rng.uniform(0.7, 9.0)
        outline = rng.randrange(len(SHAPES) + 1)
        rgb = _near(rng, rng.choice(tones))
        pose = Pose(at, (size * stretch, size / stretch), rng.uniform(0, math.pi))
        canvas.place(outline, pose, Look(rgb, level=rng.uniform(-0.2, 0.2)))
