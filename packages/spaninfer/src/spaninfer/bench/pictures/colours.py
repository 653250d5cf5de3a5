"""Names of colours, and the shades that go by them.

A shade is a point of its name's box in hue, saturation and value. One cell in four of each box is
held out: training never sees a shade from it.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Final, TypeAlias

RGB: TypeAlias = tuple[float, float, float]

_CELLS: Final = 4  # along each side of a box

BOXES: Final[Mapping[str, tuple[tuple[float, float], ...]]] = MappingProxyType(
    {
        "red": ((-8, 6), (0.78, 1), (0.68, 1)),
        "orange": ((24, 34), (0.85, 1), (0.92, 1)),
        "yellow": ((51, 61), (0.75, 1), (0.9, 1)),
        "green": ((95, 145), (0.6, 1), (0.42, 0.85)),
        "blue": ((212, 240), (0.7, 1), (0.55, 1)),
        "purple": ((270, 290), (0.55, 0.95), (0.45, 0.75)),
        "pink": ((322, 346), (0.28, 0.5), (0.95, 1)),
        "brown": ((16, 30), (0.6, 0.85), (0.3, 0.48)),
        "black": ((0, 360), (0, 0.2), (0, 0.12)),
        "white": ((0, 360), (0, 0.03), (0.95, 1)),
        "grey": ((0, 360), (0, 0.06), (0.42, 0.64)),
    }
)
"""Hue in degrees, saturation and value, by the name of the colour."""

CLASHES: Final = frozenset(
    frozenset(pair)
    for pair in (
        ("red", "orange"),
        ("red", "brown"),
        ("orange", "brown"),
        ("orange", "yellow"),
        ("purple", "blue"),
        ("white", "pink"),
        ("black", "brown"),
        ("white", "yellow"),
        ("purple", "grey"),
        ("grey", "green"),
        ("grey", "brown"),
        ("black", "purple"),
    )
)
"""Pairs that are hard to see on each other: no shape has the one before a ground of the other."""


def shade(name: str, rng: Random, *, is_held_out: bool) -> RGB:
    """Return red, green and blue, 0 to 1, of a shade that goes by `name`."""
    while True:
        places = [rng.random() for _ in range(3)]
        i, j, k = (int(place * _CELLS) for place in places)
        if ((i + 2 * j + 3 * k) % _CELLS == 0) == is_held_out:
            break
    hue, saturation, value = (
        low + place * (high - low) for (low, high), place in zip(BOXES[name], places, strict=True)
    )
    return colorsys.hsv_to_rgb(hue / 360 % 1, saturation, value)
