"""Clips: a shape that moves, perhaps past one that does not."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.canvas import COLOURS, Canvas
from spaninfer.bench.pictures.shape_scenes import (
    KINDS,
    YES_NO,
    Thing,
    article,
    ask_colour,
    ask_count,
    ask_ground,
    ask_shape,
    put,
)

DIRECTIONS = {"to the left": (-1, 0), "to the right": (1, 0), "up": (0, -1), "down": (0, 1)}
STILL = "not"

_WATCHED = ("What happens in the video?", "What do you see?", "Describe the video.")


def clip_scene(canvas: Canvas) -> Drawn:
    """Return a clip whose shape crosses a third to two thirds of the picture, or rests."""
    rng = canvas.rng
    canvas.fill(rng.choice((*COLOURS, "white", "white", "white", "black")))
    colours, shapes = canvas.colours_before_ground(), rng.sample(KINDS, 2)
    way = rng.choice((*DIRECTIONS, *DIRECTIONS, STILL))
    sides = canvas.width, canvas.height
    size = rng.uniform(11, min(sides) * 0.2)
    first, last = _path(canvas, way, size)
    duration = canvas.times_s[-1] - canvas.times_s[0]
    speed = ((last[0] - first[0]) / duration, (last[1] - first[1]) / duration)
    mover = Thing(shapes[0], colours[0], *first, size)
    things = [mover]
    if rng.random() < 0.35:
        rest = _resting(canvas, first, last, size)
        if rest is not None:
            things.append(Thing(shapes[1], colours[1], *rest))
            put(canvas, things[1])
    put(canvas, mover, speed)
    return Drawn(canvas.scene(), tuple(_questions(canvas, way, things)))


def _path(canvas: Canvas, way: str, size: float) -> tuple[tuple[float, float], ...]:
    """Return the first and the last place of the mover."""
    rng, edge = canvas.rng, size * 1.1 + 1
    spot = [rng.uniform(edge, side - edge) for side in (canvas.width, canvas.height)]
    if way == STILL:
        return (spot[0], spot[1]), (spot[0], spot[1])
    across, down = DIRECTIONS[way]
    side = canvas.width if across else canvas.height
    length = rng.uniform(0.32, 0.62) * side
    length = min(length, side - 2 * edge)
    start = rng.uniform(edge, side - edge - length)
    ends = (start, start + length) if across + down > 0 else (start + length, start)
    drift = rng.uniform(-0.08, 0.08) * length
    if across:
        return (ends[0], spot[1]), (ends[1], spot[1] + drift)
    return (spot[0], ends[0]), (spot[0] + drift, ends[1])


def _resting(
    canvas: Canvas, first: tuple[float, float], last: tuple[float, float], size: float
) -> tuple[float, float, float] | None:
    """Return a place beside the mover's path, or None."""
    rng = canvas.rng
    for _ in range(12):
        radius = rng.uniform(9, 14)
        x = rng.uniform(radius + 2, canvas.width - radius - 2)
        y = rng.uniform(radius + 2, canvas.height - radius - 2)
        low = [min(pair) - size - radius - 4 for pair in zip(first, last, strict=True)]
        high = [max(pair) + size + radius + 4 for pair in zip(first, last, strict=True)]
        if not (low[0] < x < high[0] and low[1] < y < high[1]):
            return x, y, radius
    return None


def _questions(canvas: Canvas, way: str, things: list[Thing]) -> Iterator[Asked]:
    rng, mover = canvas.rng, things[0]
    among = (*DIRECTIONS, STILL)
    moves = "does not move" if way == STILL else f"moves {way}"
    for noun in (mover.shape, mover.name, mover.shape):
        question = rng.choice(
            (
                f"Which way does the {noun} move?",
                f"Where does the {noun} go?",
                f"In which direction does the {noun} move?",
            )
        )
        yield Asked("motion", question, f"The {noun} {moves}.", way, among)
    if way != STILL:
        question = rng.choice((*_WATCHED, "What moves?"))
        answer = f"{article(mover.colour).capitalize()} {mover.name} {moves}."
        yield Asked("motion", question, answer, way, among)
        yes = f"Yes, it {moves}."
        yield Asked("motion", f"Does the {mover.shape} move?", yes, "yes", YES_NO)
    else:
        no = "No, it does not move."
        yield Asked("motion", f"Does the {mover.shape} move?", no, "no", YES_NO)
        question = rng.choice((*_WATCHED, "What moves?"))
        yield Asked("motion", question, "Nothing moves.", "nothing", ("nothing", *DIRECTIONS))
    if len(things) == 2:
        question = f"Does the {things[1].shape} move?"
        yield Asked("motion", question, "No, it does not move.", "no", YES_NO)
    for thing in things:
        yield ask_colour(rng, thing.shape, thing.colour)
        yield ask_shape(rng, thing)
    yield ask_count(rng, len(things), "shape")
    yield from ask_ground(canvas)
