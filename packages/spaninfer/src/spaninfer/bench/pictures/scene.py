"""A picture or a clip as numbers: a ground, waves on it, and outlines before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUM_SPRITES: Final = 12
"""Outlines of a scene; later ones lie before earlier ones."""

NUM_WAVES: Final = 10
"""Plane waves of a scene's ground."""

SPRITE: Final = {
    name: at
    for at, name in enumerate(
        (
            "outline",
            "x",
            "y",
            "a",
            "b",
            "c",
            "d",
            "scale",
            "level",
            "rim",
            "red",
            "green",
            "blue",
            "soft",
            "x_speed",
            "y_speed",
            "kind",
            "colour",
        )
    )
}
"""Columns of a sprite: place in pixels; the matrix a b c d from pixels to the outline's units;
pixels per unit; the level at which the outline is cut, and half of the rim's width if it is not
filled; pixels over which an edge fades; pixels per second; class and colour for training."""

GROUND: Final = {
    name: at
    for at, name in enumerate(
        (
            "red",
            "green",
            "blue",
            "red_end",
            "green_end",
            "blue_end",
            "x",
            "y",
            "start",
            "hard",
            "swirl",
            "swirl_x",
            "swirl_y",
        )
    )
}
"""Columns of the ground: two colours, how far along the way to the second one a pixel is, how
sharply waves become blots (0: not at all), and a swirl that bends them."""

WAVE: Final = {name: at for at, name in enumerate(("x", "y", "phase", "red", "green", "blue"))}
"""Columns of a wave: radians per pixel, radians, and amplitudes."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Numbers of one picture, or of a clip if sprites move; float32."""

    height: int
    width: int
    sprites: NDArray[np.float32]  # [NUM_SPRITES len(SPRITE)]
    ground: NDArray[np.float32]  # [len(GROUND)]
    waves: NDArray[np.float32]  # [NUM_WAVES len(WAVE)]
    times_s: tuple[float, ...] = (0.0,)  # of a clip's frames

    @property
    def is_clip(self) -> bool:
        """True of several frames."""
        return len(self.times_s) > 1
