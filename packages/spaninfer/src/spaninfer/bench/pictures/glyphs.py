"""Digits and letters as strokes, and the fonts that bend them.

A stroke is a path on the unit square, y down: `L` runs through points, `A` along an ellipse
(centre, radii, first and last angle in degrees, clockwise). A font widens, slants, squares and
ornaments the same strokes, so that no font file is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

_ARC_STEPS: Final = 14
_SERIF: Final = 0.17  # of the glyph's width, to either side of a stroke's end

STROKES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "0": "A .5 .5 .5 .5 0 360",
        "1": "L .12 .26 .58 0 .58 1",
        "2": "A .5 .29 .48 .29 190 395 L 0 1 1 1",
        "3": "A .45 .26 .45 .26 200 450 ; A .45 .75 .5 .25 270 520",
        "4": "L .7 1 .7 0 0 .68 1 .68",
        "5": "L .95 0 .15 0 .08 .46 A .48 .67 .5 .33 225 515",
        "6": "A .5 .68 .5 .32 0 360 ; A .75 .68 .75 .68 180 275",
        "7": "L 0 0 1 0 .35 1",
        "8": "A .5 .26 .42 .26 0 360 ; A .5 .76 .5 .24 0 360",
        "9": "A .5 .32 .5 .32 0 360 ; A .25 .32 .75 .68 0 95",
        "A": "L 0 1 .5 0 1 1 ; L .2 .62 .8 .62",
        "B": "L 0 1 0 0 .5 0 A .5 .24 .4 .24 270 450 L 0 .48 ; "
        "L 0 .48 .5 .48 A .5 .74 .5 .26 270 450 L 0 1",
        "C": "A .55 .5 .55 .5 318 42",
        "D": "L 0 0 0 1 ; L 0 0 .4 0 A .4 .5 .6 .5 270 450 L 0 1",
        "E": "L 1 0 0 0 0 1 1 1 ; L 0 .48 .8 .48",
        "F": "L 1 0 0 0 0 1 ; L 0 .48 .8 .48",
        "G": "A .55 .5 .55 .5 318 40 L 1 .85 1 .56 .6 .56",
        "H": "L 0 0 0 1 ; L 1 0 1 1 ; L 0 .5 1 .5",
        "I": "L .5 0 .5 1",
        "J": "L .8 0 .8 .7 A .4 .7 .4 .3 0 180",
        "K": "L 0 0 0 1 ; L 1 0 0 .6 ; L .35 .4 1 1",
        "L": "L 0 0 0 1 .9 1",
        "M": "L 0 1 0 0 .5 .65 1 0 1 1",
        "N": "L 0 1 0 0 1 1 1 0",
        "O": "A .5 .5 .52 .5 0 360",
        "P": "L 0 1 0 0 .5 0 A .5 .27 .5 .27 270 450 L 0 .54",
        "Q": "A .5 .5 .5 .5 0 360 ; L .6 .7 1 1.05",
        "R": "L 0 1 0 0 .5 0 A .5 .27 .5 .27 270 450 L 0 .54 ; L .45 .54 1 1",
        "S": "A .5 .26 .46 .26 330 90 A .5 .76 .5 .24 270 510",
        "T": "L 0 0 1 0 ; L .5 0 .5 1",
        "U": "L 0 0 0 .6 A .5 .6 .5 .4 180 0 L 1 0",
        "V": "L 0 0 .5 1 1 0",
        "W": "L 0 0 .25 1 .5 .3 .75 1 1 0",
        "X": "L 0 0 1 1 ; L 1 0 0 1",
        "Y": "L 0 0 .5 .5 1 0 ; L .5 .5 .5 1",
        "Z": "L 0 0 1 0 0 1 1 1",
    }
)
"""Paths by character."""

CHARACTERS: Final = "".join(STROKES)


@dataclass(frozen=True, slots=True)
class Font:
    """The shape of a family of glyphs; how thick the strokes are is chosen where they are drawn."""

    width: float  # half of the glyph's width; half of its height is 1
    slant: float  # how far the top leans to the right, of half the height
    squareness: float  # exponent of the round parts: 2 is an ellipse
    has_serifs: bool


def font_of(number: int, *, is_held_out: bool) -> Font:
    """Return font `number`. Square fonts with serifs are held out: training has none."""
    rng = Random(f"font/{is_held_out}/{number}")
    has_serifs = is_held_out or rng.random() < 0.4
    square = is_held_out or (not has_serifs and rng.random() < 0.45)
    return Font(
        width=rng.uniform(0.5, 0.74),
        slant=rng.choice((0.0, rng.uniform(-0.12, 0.34))),
        squareness=rng.uniform(2.7, 4.5) if square else rng.uniform(1.9, 2.3),
        has_serifs=has_serifs,
    )


def segments(character: str, font: Font) -> NDArray[np.float64]:
    """Return the straight pieces [pieces 2 2] of a glyph: from and to, x and y in -1 .. 1."""
    pieces: list[NDArray[np.float64]] = []
    for path in STROKES[character].split(";"):
        points = np.array(list(_points(path.split(), font.squareness)))
        pieces.append(np.stack((points[:-1], points[1:]), axis=1))
        if font.has_serifs:
            pieces.extend(_serifs(points))
    both = np.concatenate(pieces)
    x, y = both[..., 0] - 0.5, both[..., 1] - 0.5
    return np.stack((2 * x * font.width - 2 * y * font.slant, 2 * y), axis=-1)


def _points(words: list[str], squareness: float) -> Iterator[tuple[float, float]]:
    """Yield the points of a path."""
    at = 0
    while at < len(words):
        kind, at = words[at], at + 1
        numbers: list[float] = []
        while at < len(words) and words[at] not in ("L", "A"):
            numbers.append(float(words[at]))
            at += 1
        if kind == "L":
            yield from zip(numbers[::2], numbers[1::2], strict=True)
            continue
        x, y, x_radius, y_radius, first, last = numbers
        for angle in np.radians(np.linspace(first, last, _ARC_STEPS)):
            yield (
                x + x_radius * _bent(np.cos(angle), squareness),
                y + y_radius * _bent(np.sin(angle), squareness),
            )


def _bent(value: float, squareness: float) -> float:
    """Return the coordinate of a superellipse."""
    return float(np.sign(value) * abs(value) ** (2 / squareness))


def _serifs(points: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """Yield a short bar at each end of a stroke on the line or the top, unless it runs flat."""
    for end, inner in ((points[0], points[1]), (points[-1], points[-2])):
        if min(end[1], 1 - end[1]) < 0.02 and abs(end[1] - inner[1]) > 0.1:
            yield np.array([[[end[0] - _SERIF, end[1]], [end[0] + _SERIF, end[1]]]])
