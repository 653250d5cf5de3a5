"""Scenes of shapes: what, which colour, how many, where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.canvas import COLOURS, Canvas, Look, Pose
from spaninfer.bench.pictures.shapes import SHAPES

KINDS = tuple(SHAPES)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
YES_NO = ("yes", "no")
ZONES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
ALL_ZONES = tuple(zone for row in ZONES for zone in row)
SIDES = ("to the left of", "to the right of", "above", "below")

_TURNS = {"circle": math.pi, "ring": math.pi, "triangle": 0.35, "star": 0.6, "heart": 0.3}
_TURNS |= {"square": 0.15, "cross": 0.25, "moon": 0.6, "diamond": 0.12, "rectangle": 0.15}


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape in a scene: its name, place and radius in pixels."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float

    @property
    def name(self) -> str:
        """Colour and shape."""
        return f"{self.colour} {self.shape}"


def plural(shape: str) -> str:
    """Return the plural of a shape's name."""
    return shape + ("es" if shape == "cross" else "s")


def shapes_scene(canvas: Canvas) -> Drawn:
    """Return a scene of one to six shapes that do not touch."""
    rng = canvas.rng
    canvas.fill(rng.choice((*COLOURS, "white", "white", "white", "black", "grey")))
    count = rng.choices(range(1, 7), (16, 20, 20, 18, 18, 8))[0]
    things = [
        Thing(*named, *place)
        for named, place in zip(_named(canvas, count), _places(canvas, count), strict=False)
    ]
    for thing in things:
        put(canvas, thing)
    return Drawn(canvas.scene(), tuple(_questions(canvas, things)))


def put(canvas: Canvas, thing: Thing, speed: tuple[float, float] = (0.0, 0.0)) -> None:
    """Draw a thing, filled or as a rim."""
    rng = canvas.rng
    is_rim = thing.shape != "ring" and thing.radius > 16 and rng.random() < 0.12
    angle = rng.uniform(-1, 1) * _TURNS[thing.shape]
    if thing.shape == "rectangle" and rng.random() < 0.4:
        angle += math.pi / 2
    look = Look(
        canvas.shade(thing.colour),
        rim=rng.uniform(2.0, 3.5) / thing.radius if is_rim else 0.0,
        colour=thing.colour,
    )
    pose = Pose((thing.x, thing.y), thing.radius, angle, speed)
    canvas.place(KINDS.index(thing.shape), pose, look)


def _named(canvas: Canvas, count: int) -> list[tuple[str, str]]:
    """Return shapes and colours: all drawn, all alike in one of the two, or of two kinds."""
    rng, colours = canvas.rng, canvas.colours_before_ground()
    way = rng.choice(("any", "any", "one shape", "one colour", "alike", "two kinds"))
    if way == "alike":
        return [(rng.choice(KINDS), colours[0])] * count
    if way == "two kinds":
        kinds = rng.sample(KINDS, 2)
        return [(rng.choice(kinds), rng.choice(colours[:2])) for _ in range(count)]
    shape, colour = rng.choice(KINDS), colours[0]
    return [
        (
            shape if way == "one shape" else rng.choice(KINDS),
            colour if way == "one colour" else rng.choice(colours),
        )
        for _ in range(count)
    ]


def _places(canvas: Canvas, count: int) -> list[tuple[float, float, float]]:
    """Return places and radii of things that do not touch, perhaps fewer than requested."""
    rng = canvas.rng
    most = min(canvas.height, canvas.width) * (0.32, 0.24, 0.2, 0.17, 0.15, 0.14)[count - 1]
    is_even = rng.random() < 0.5
    radius = rng.uniform(11, most)
    places: list[tuple[float, float, float]] = []
    for _ in range(60 * count):
        size = radius if is_even else rng.uniform(11, most)
        place = free_place(canvas, size, places)
        if place is not None:
            places.append(place)
        if len(places) == count:
            break
    return places


def free_place(
    canvas: Canvas, size: float, taken: list[tuple[float, float, float]]
) -> tuple[float, float, float] | None:
    """Return a place for a thing of a radius, or None if the drawn one is taken."""
    rng, edge = canvas.rng, 1.1 * size + 1
    if 2 * edge > min(canvas.height, canvas.width):
        return None
    x, y = rng.uniform(edge, canvas.width - edge), rng.uniform(edge, canvas.height - edge)
    for other_x, other_y, other in taken:
        if math.hypot(x - other_x, y - other_y) < 1.15 * (size + other) + 3:
            return None
    return x, y, size


def _questions(canvas: Canvas, things: list[Thing]) -> Iterator[Asked]:
    rng = canvas.rng
    yield from ask_ground(canvas)
    yield ask_count(rng, len(things), "shape")
    yield from _ask_counts(canvas, things)
    yield from _ask_existence(rng, things)
    yield from about_single(rng, things)
    for thing in things:
        yield from _about(canvas, thing, things)
    yield from _ask_sides(rng, things)
    yield from _ask_largest(things)
    yield from _ask_all(canvas, things)


def ask_ground(canvas: Canvas) -> Iterator[Asked]:
    """Ask for the colour of the ground."""
    colour = canvas.ground_colour
    question = canvas.rng.choice(
        ("What colour is the background?", "Which colour does the background have?")
    )
    yield Asked("background", question, f"The background is {colour}.", colour, COLOURS)


def ask_count(rng: Random, count: int, noun: str) -> Asked:
    """Ask how many things of a name there are."""
    many = noun[: -len("shape")] + "shapes" if noun.endswith("shape") else plural(noun)
    question = rng.choice(
        (f"How many {many} are there?", f"How many {many} do you see?", f"Count the {many}.")
    )
    number = NUMBERS[count]
    is_one = count == 1
    answer = f"There {'is' if is_one else 'are'} {number} {noun if is_one else many}."
    return Asked("count", question, answer, number, NUMBERS)


def _ask_counts(canvas: Canvas, things: list[Thing]) -> Iterator[Asked]:
    rng = canvas.rng
    shapes, colours = {thing.shape for thing in things}, {thing.colour for thing in things}
    for shape in dict.fromkeys((*sorted(shapes)[:2], rng.choice(KINDS))):
        yield ask_count(rng, sum(thing.shape == shape for thing in things), shape)
    for colour in dict.fromkeys((*sorted(colours)[:2], rng.choice(COLOURS))):
        count = sum(thing.colour == colour for thing in things)
        yield ask_count(rng, count, f"{colour} shape")


def _ask_existence(rng: Random, things: list[Thing]) -> Iterator[Asked]:
    one = rng.choice(things)
    other = Thing(rng.choice(KINDS), rng.choice(COLOURS), 0, 0, 0)
    swapped = Thing(one.shape, rng.choice(COLOURS), 0, 0, 0)
    for thing in (one, other, swapped):
        is_there = any(thing.name == each.name for each in things)
        named = f"{article(thing.colour)} {thing.name}"
        question = rng.choice((f"Is there {named}?", f"Do you see {named}?"))
        answer = f"Yes, there is {named}." if is_there else f"No, there is no {thing.name}."
        yield Asked("existence", question, answer, "yes" if is_there else "no", YES_NO)
    absent = [shape for shape in KINDS if shape not in {thing.shape for thing in things}]
    shape = rng.choice(absent)
    yield ask_absent(shape, f"What colour is the {shape}?")
    yield ask_absent(f"{other.colour} {shape}", f"Where is the {other.colour} {shape}?")
    noun = rng.choice(("number", "word"))
    yield ask_absent(noun, f"What {noun} is this?")


def about_single(rng: Random, things: list[Thing]) -> Iterator[Asked]:
    """Ask what a picture shows that has one thing."""
    if len(things) != 1:
        return
    (thing,) = things
    what = f"This is {article(thing.colour)} {thing.name}."
    yield Asked("shape", "What is this?", what, thing.shape, KINDS)
    question = rng.choice(("What shape is this?", "Which shape do you see?", "Name the shape."))
    yield Asked("shape", question, f"This is a {thing.shape}.", thing.shape, KINDS)
    question = rng.choice(("What colour is it?", "What colour is the shape?"))
    yield Asked("colour", question, f"It is {thing.colour}.", thing.colour, COLOURS)


def _about(canvas: Canvas, thing: Thing, things: list[Thing]) -> Iterator[Asked]:
    rng = canvas.rng
    colours = {each.colour for each in things if each.shape == thing.shape}
    if len(colours) == 1 and sum(each.shape == thing.shape for each in things) == 1:
        yield ask_colour(rng, thing.shape, thing.colour)
    if sum(each.colour == thing.colour for each in things) == 1:
        yield ask_shape(rng, thing)
    zone = _zone(canvas, thing)
    if zone is not None and sum(each.name == thing.name for each in things) == 1:
        question = f"Where is the {thing.name}?"
        yield Asked("position", question, f"The {thing.name} is {zone}.", zone, ALL_ZONES)


def ask_colour(rng: Random, noun: str, colour: str) -> Asked:
    """Ask which colour the thing of a name has."""
    question = rng.choice((f"What colour is the {noun}?", f"Which colour does the {noun} have?"))
    return Asked("colour", question, f"The {noun} is {colour}.", colour, COLOURS)


def ask_shape(rng: Random, thing: Thing) -> Asked:
    """Ask which shape the thing of a colour is."""
    question = rng.choice((f"What shape is {thing.colour}?", f"Which shape is {thing.colour}?"))
    answer = f"The {thing.colour} shape is a {thing.shape}."
    return Asked("shape", question, answer, thing.shape, KINDS)


def _zone(canvas: Canvas, thing: Thing) -> str | None:
    """Return the ninth of the picture that a thing is in; None near a border between two."""
    parts = []
    for share in (thing.y / canvas.height, thing.x / canvas.width):
        if min(abs(share - 1 / 3), abs(share - 2 / 3)) < 0.05:
            return None
        parts.append(min(int(share * 3), 2))
    return ZONES[parts[0]][parts[1]]


def _ask_sides(rng: Random, things: list[Thing]) -> Iterator[Asked]:
    """Ask on which side of another a thing is, where it is clear."""
    names = [thing.name for thing in things]
    single = [thing for thing in things if names.count(thing.name) == 1]
    if len(single) < 2:
        return
    for _ in range(4):
        one, other = rng.sample(single, 2)
        across, down = one.x - other.x, one.y - other.y
        if abs(across) > 1.8 * abs(down) and abs(across) > 20:
            side = SIDES[0] if across < 0 else SIDES[1]
        elif abs(down) > 1.8 * abs(across) and abs(down) > 20:
            side = SIDES[2] if down < 0 else SIDES[3]
        else:
            continue
        answer = f"The {one.name} is {side} the {other.name}."
        question = f"Where is the {one.name} compared with the {other.name}?"
        yield Asked("position", question, answer, side, SIDES)
        asked = rng.choice(SIDES[:2] if side in SIDES[:2] else SIDES[2:])
        yes = "Yes, it is." if asked == side else f"No, it is {side} it."
        question = f"Is the {one.name} {asked} the {other.name}?"
        yield Asked("position", question, yes, "yes" if asked == side else "no", YES_NO)


def _ask_largest(things: list[Thing]) -> Iterator[Asked]:
    ordered = sorted(things, key=lambda thing: thing.radius)
    if len(ordered) < 2 or len({thing.name for thing in ordered}) != len(ordered):
        return
    names = tuple(thing.name for thing in ordered)
    for word, thing, ratio in (
        ("largest", ordered[-1], ordered[-1].radius / ordered[-2].radius),
        ("smallest", ordered[0], ordered[1].radius / ordered[0].radius),
    ):
        if ratio > 1.35:
            answer = f"The {word} shape is the {thing.name}."
            yield Asked("size", f"Which shape is the {word}?", answer, thing.name, names)


def _ask_all(canvas: Canvas, things: list[Thing]) -> Iterator[Asked]:
    """Ask for everything: by name where left and right are clear, else how many there are."""
    ordered = sorted(things, key=lambda thing: thing.x)
    gaps = [after.x - before.x for before, after in itertools.pairwise(ordered)]
    is_clear = len(things) <= 4 and min(gaps, default=99) >= 14
    what = listed(ordered) if is_clear else f"{NUMBERS[len(things)]} shapes"
    ground = f"{article(canvas.ground_colour)} {canvas.ground_colour} background"
    yield ask_description(canvas.rng, f"I see {what} on {ground}.", is_one=len(things) == 1)


def ask_description(rng: Random, answer: str, *, is_one: bool = False) -> Asked:
    """Ask for all there is; "What is this?" asks for it unless it is one thing."""
    questions = ["What do you see?", "Describe the picture.", "What is in the picture?"]
    question = rng.choice(questions if is_one else [*questions, "What is this?"])
    words = answer.lower().replace(",", "").removesuffix(".")
    return Asked("description", question, answer, words, (words,))


def listed(things: list[Thing], first: tuple[str, ...] = ()) -> str:
    """Return a list of things in words, behind others that are named already."""
    named = [*first, *(f"{article(each.colour)} {each.name}" for each in things)]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def article(colour: str) -> str:
    """Return the article before a colour."""
    return "an" if colour == "orange" else "a"


def ask_absent(noun: str, question: str) -> Asked:
    """Ask about something that is not there."""
    return Asked("absence", question, f"There is no {noun} in the picture.", "no", ("no",))
