"""Scenes of all kinds, drawn by seed, in the sizes that the bundled model sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Final

from spaninfer.bench.pictures.asked import Drawn
from spaninfer.bench.pictures.canvas import Canvas, Style
from spaninfer.bench.pictures.chart_scenes import chart_scene
from spaninfer.bench.pictures.clip_scenes import clip_scene
from spaninfer.bench.pictures.outside_scenes import outside_scene
from spaninfer.bench.pictures.shape_scenes import shapes_scene
from spaninfer.bench.pictures.text_scenes import number_scene, word_scene

CELL: Final = 32
"""Pixels along a side of what becomes one token: two patches of 16."""

SCENES: Final[Mapping[str, Callable[[Canvas], Drawn]]] = MappingProxyType(
    {
        "shapes": shapes_scene,
        "number": number_scene,
        "word": word_scene,
        "chart": chart_scene,
        "clip": clip_scene,
        "outside": outside_scene,
    }
)
"""How a kind of scene is composed."""

PICTURE_CELLS: Final = (
    *(((7, 7),) * 10),
    *((6, 8), (8, 6), (6, 8), (8, 6), (5, 9), (9, 5), (6, 7), (7, 6), (5, 8), (8, 5), (6, 6)),
    *((4, 9), (9, 4), (5, 10), (10, 5), (4, 12), (12, 4), (5, 7), (7, 5)),
)
"""Rows and columns of tokens of pictures, square ones more often."""

CLIP_CELLS: Final = MappingProxyType(
    {
        2: ((5, 5), (4, 6), (6, 4), (4, 5), (5, 4)),
        3: ((4, 4), (3, 5), (5, 3), (3, 4), (4, 3)),
        4: ((3, 3), (3, 4), (4, 3), (3, 4)),
    }
)
"""Rows and columns of tokens of a clip's pairs of frames, by the number of pairs."""

TRAINING: Final = Style(is_held_out=False, fonts=160)
HELD_OUT: Final = Style(is_held_out=True, fonts=24)


def draw(kind: str, rng: Random, style: Style) -> Drawn:
    """Return a scene of a kind of SCENES."""
    if kind != "clip":
        rows, columns = rng.choice(PICTURE_CELLS)
        return SCENES[kind](Canvas(rng, style, rows * CELL, columns * CELL))
    pairs = rng.choice((2, 3, 4, 4))
    rows, columns = rng.choice(CLIP_CELLS[pairs])
    lasts_s = rng.uniform(0.45, 0.75) * (2 * pairs - 1) if pairs < 4 else rng.uniform(3, 9)
    times = tuple(lasts_s * at / (2 * pairs - 1) for at in range(2 * pairs))
    return SCENES[kind](Canvas(rng, style, rows * CELL, columns * CELL, times))
