"""Bar charts: tallest, shortest, how many."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.atlas import BAR
from spaninfer.bench.pictures.canvas import COLOURS, Canvas, Look, Pose
from spaninfer.bench.pictures.shape_scenes import NUMBERS, ask_absent, ask_description, ask_ground

_GAP = 11.0  # pixels, at least, by which heights differ


def chart_scene(canvas: Canvas) -> Drawn:
    """Return a chart of two to five bars, each of its own colour and height."""
    rng = canvas.rng
    canvas.fill(rng.choice(("white", "white", "white", "black", "grey", "yellow", "pink")))
    count = rng.randint(2, 5)
    colours = canvas.colours_before_ground()[:count]
    left, right = rng.uniform(14, 30), canvas.width - rng.uniform(8, 20)
    foot, top = canvas.height - rng.uniform(12, 26), rng.uniform(8, 24)
    heights = _heights(rng, count, foot - top)
    slot = (right - left) / count
    half = slot / 2 * rng.uniform(0.5, 0.85)
    for at, (colour, height) in enumerate(zip(colours, heights, strict=True)):
        place = left + slot * (at + 0.5), foot - height / 2
        look = Look(canvas.shade(colour), colour=colour)
        canvas.place(BAR, Pose(place, (half, height / 2)), look)
    if rng.random() < 0.8:
        _axes(canvas, left - 3, right, foot, top)
    return Drawn(canvas.scene(), tuple(_questions(canvas, colours, heights)))


def _heights(rng: Random, count: int, room: float) -> list[float]:
    """Return heights in pixels that differ by _GAP at least, in a drawn order."""
    spare = room - 8 - _GAP * (count - 1)
    cuts = sorted(rng.uniform(0, spare) for _ in range(count))
    return rng.sample([8 + cut + _GAP * at for at, cut in enumerate(cuts)], count)


def _axes(canvas: Canvas, left: float, right: float, foot: float, top: float) -> None:
    ink = Look(canvas.shade("white" if canvas.ground_colour == "black" else "black"))
    thick = canvas.rng.uniform(0.8, 1.6)
    half_width, half_height = (right - left) / 2, (foot - top) / 2
    canvas.place(BAR, Pose((left + half_width, foot + thick), (half_width, thick)), ink)
    canvas.place(BAR, Pose((left, top + half_height), (thick, half_height)), ink)


def _questions(canvas: Canvas, colours: list[str], heights: list[float]) -> Iterator[Asked]:
    rng = canvas.rng
    ordered = [colour for _, colour in sorted(zip(heights, colours, strict=True))]
    for word, colour in (("tallest", ordered[-1]), ("shortest", ordered[0])):
        question = rng.choice((f"Which bar is the {word}?", f"What colour is the {word} bar?"))
        yield Asked("chart", question, f"The {word} bar is {colour}.", colour, COLOURS)
    one, other = rng.sample(ordered, 2)
    taller = max(one, other, key=ordered.index)
    question = f"Which bar is taller, the {one} one or the {other} one?"
    yield Asked("chart", question, f"The {taller} bar is taller.", taller, COLOURS)
    number = NUMBERS[len(colours)]
    answer = f"There are {number} bars."
    yield Asked("chart", "How many bars are there?", answer, number, NUMBERS)
    yield ask_description(rng, f"I see a bar chart with {number} bars.")
    yield from ask_ground(canvas)
    yield ask_absent("number", "What number is this?")
