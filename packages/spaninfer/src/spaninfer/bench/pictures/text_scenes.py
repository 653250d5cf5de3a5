"""Scenes with a number or a short word, alone or beside shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from random import Random

from spaninfer.bench.pictures.asked import Asked, Drawn
from spaninfer.bench.pictures.atlas import glyph_outline
from spaninfer.bench.pictures.canvas import COLOURS, Canvas, Look, Pose
from spaninfer.bench.pictures.glyphs import font_of
from spaninfer.bench.pictures.shape_scenes import (
    KINDS,
    Thing,
    ask_absent,
    ask_colour,
    ask_description,
    ask_ground,
    ask_shape,
    free_place,
    listed,
    put,
)


@cache
def words() -> tuple[str, ...]:
    """Return the words that pictures show."""
    text = (files("spaninfer.bench.pictures") / "words.txt").read_text(encoding="utf-8")
    return tuple(word for word in text.split() if len(word) <= 5)


def number_scene(canvas: Canvas) -> Drawn:
    """Return a scene with a number of one to three digits, two as a rule."""
    rng = canvas.rng
    digits = rng.choices((1, 2, 3), (15, 70, 15))[0]
    number = str(rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits))
    question = rng.choice(
        (
            "What number is this?",
            "Which number do you see?",
            "Read the number.",
            "What is the number?",
            "What number is in the picture?",
        )
    )
    asked = Asked("number", question, f"The number is {number}.", number, _numbers())
    return _text_scene(canvas, number, asked)


def word_scene(canvas: Canvas) -> Drawn:
    """Return a scene with a short word."""
    rng = canvas.rng
    word = rng.choice(words())
    question = rng.choice(
        ("What word is this?", "Which word do you see?", "Read the word.", "What does it say?")
    )
    asked = Asked("word", question, f"The word is {word}.", word, words())
    return _text_scene(canvas, word.upper(), asked)


@cache
def _numbers() -> tuple[str, ...]:
    return tuple(map(str, range(1000)))


def _text_scene(canvas: Canvas, text: str, asked: Asked) -> Drawn:
    """Return a scene with a text; `asked` reads it."""
    rng, noun = canvas.rng, asked.skill
    canvas.fill(rng.choice((*COLOURS, "white", "white", "white", "black", "grey")))
    ink, *others = canvas.colours_before_ground()
    taken = _write(canvas, text, ink)
    things: list[Thing] = []
    for colour in others[: rng.choices((0, 1, 2), (6, 2, 1))[0]]:
        place = free_place(canvas, rng.uniform(11, 24), taken)
        if place is not None and not any(thing.x == place[0] for thing in things):
            things.append(Thing(rng.choice(KINDS), colour, *place))
            taken.append(place)
            put(canvas, things[-1])
    other = "word" if noun == "number" else "number"
    questions = [asked, ask_colour(rng, noun, ink), *ask_ground(canvas)]
    questions += [ask_absent(other, f"What {other} is this?"), *_ask_things(rng, things)]
    seen = listed(sorted(things, key=lambda thing: thing.x), (f"the {noun} {asked.expected}",))
    questions.append(ask_description(rng, f"I see {seen}."))
    return Drawn(canvas.scene(), tuple(questions))


def _ask_things(rng: Random, things: list[Thing]) -> Iterator[Asked]:
    """Ask about the shapes beside a text."""
    for thing in things:
        if sum(each.shape == thing.shape for each in things) == 1:
            yield ask_colour(rng, thing.shape, thing.colour)
        yield ask_shape(rng, thing)


def _write(canvas: Canvas, text: str, ink: str) -> list[tuple[float, float, float]]:
    """Write a text somewhere, and return circles that cover it."""
    rng, style = canvas.rng, canvas.style
    font = rng.randrange(style.fonts)
    level = rng.uniform(0.08, 0.21)
    width = font_of(font, is_held_out=style.is_held_out).width
    advance = 2 * width + 2 * level + rng.uniform(0.22, 0.5)  # of half the height
    most = min((canvas.width - 14) / (advance * len(text) + 0.5), (canvas.height - 14) / 2.8, 60.0)
    half = rng.uniform(min(11.0, most), most)
    wide, high = half * (advance * len(text) + 0.5) / 2, 1.35 * half
    x = (
        rng.uniform(wide + 4, canvas.width - wide - 4)
        if canvas.width > 2 * wide + 8
        else (canvas.width / 2)
    )
    y = rng.uniform(high, canvas.height - high)
    angle = rng.uniform(-0.06, 0.06)
    rgb = canvas.shade(ink)
    circles = []
    for at, character in enumerate(text):
        offset = (at - (len(text) - 1) / 2) * advance * half
        place = (x + offset, y + offset * angle)
        look = Look(rgb, level=level, colour=ink)
        canvas.place(glyph_outline(character, font), Pose(place, half, angle), look)
        circles.append((*place, 1.3 * half))
    return circles
