"""All outlines on one grid each, so that a picture is drawn by looking distances up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer.bench.pictures.glyphs import CHARACTERS, Font, font_of, segments
from spaninfer.bench.pictures.shapes import SHAPES, bar, distance_to

SIDE: Final = 64
"""Points along a side of a grid."""

REACH: Final = 1.4
"""A grid covers -REACH .. REACH of its outline's units."""

BAR: Final = len(SHAPES)
"""The outline of a chart's bar; before it come the shapes, behind it the glyphs of each font."""

NUM_CLASSES: Final = BAR + 1 + len(CHARACTERS)
"""What an outline may be, whatever its font."""


def glyph_outline(character: str, font: int) -> int:
    """Return the number of a character's outline in a font."""
    return BAR + 1 + font * len(CHARACTERS) + CHARACTERS.index(character)


def class_of(outline: int) -> int:
    """Return what an outline is: a shape, a bar or a character."""
    return outline if outline <= BAR else BAR + 1 + (outline - BAR - 1) % len(CHARACTERS)


@dataclass(frozen=True, slots=True)
class Atlas:
    """The outlines that scenes refer to, `fonts` fonts among them; each is computed when asked."""

    is_held_out: bool
    fonts: int
    _made: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    def outline(self, number: int) -> NDArray[np.float32]:
        """Return the distances [SIDE SIDE] of outline `number`."""
        if number not in self._made:
            self._made[number] = self._outline(number).astype(np.float32)
        return self._made[number]

    @property
    def count(self) -> int:
        """The number of outlines."""
        return BAR + 1 + self.fonts * len(CHARACTERS)

    def _outline(self, number: int) -> NDArray[np.float64]:
        axis = np.linspace(-REACH, REACH, SIDE)
        y, x = np.meshgrid(axis, axis, indexing="ij")
        if number < BAR:
            return tuple(SHAPES.values())[number](x, y)
        if number == BAR:
            return bar(x, y)
        font, character = divmod(number - BAR - 1, len(CHARACTERS))
        return distance_to(segments(CHARACTERS[character], self._font(font)), x, y)

    def _font(self, number: int) -> Font:
        return font_of(number, is_held_out=self.is_held_out)
