"""Drawing: from a scene's numbers to colours at points, with numpy, or with torch on a GPU.

Functions take the module of arrays as `xp` and use what numpy and torch share, so that training
and tests draw with the same code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer.bench.pictures.atlas import REACH, SIDE, Atlas
from spaninfer.bench.pictures.scene import GROUND, NUM_WAVES, SPRITE, WAVE, Scene


def frames_of(
    scene: Scene, atlas: Atlas, *, zoom: float = 1.0, grain: float = 0.0, seed: int = 0
) -> NDArray[np.uint8]:
    """Return the frames [frames height width 3], `zoom` pixels for one of the scene.

    `grain` is the deviation of noise on each value, 0 to 1, drawn from `seed`.
    """
    height, width = round(scene.height * zoom), round(scene.width * zoom)
    y, x = np.meshgrid(_centres(height, zoom), _centres(width, zoom), indexing="ij")
    noise = np.random.default_rng(seed)
    frames = []
    for time_s in scene.times_s:
        colours = ground_at(scene.ground, scene.waves, x, y, xp=np)
        for sprite in scene.sprites:
            if sprite[SPRITE["scale"]] > 0:
                outline = atlas.outline(int(sprite[SPRITE["outline"]])).reshape(-1)
                cover = cover_at(sprite, outline, Points(x, y, np.float32(time_s)), xp=np)
                colours = blend(colours, sprite, cover)
        frame = np.stack(colours, axis=-1)
        if grain:
            frame = frame + noise.normal(0, grain, frame.shape)
        frames.append(np.clip(frame * 255 + 0.5, 0, 255).astype(np.uint8))
    return np.stack(frames)


def _centres(count: int, zoom: float) -> NDArray[np.float32]:
    return ((np.arange(count, dtype=np.float32) + 0.5) / zoom).astype(np.float32)


def ground_at(ground: Any, waves: Any, x: Any, y: Any, *, xp: Any) -> list[Any]:
    """Return red, green and blue of the ground[... 13] with waves[... W 6] at points x, y[...]."""
    column = {name: ground[..., at] for name, at in GROUND.items()}
    way = xp.clip(column["x"] * x + column["y"] * y + column["start"], 0, 1)
    bend_x = x + column["swirl"] * xp.sin(y * column["swirl_y"])
    bend_y = y + column["swirl"] * xp.sin(x * column["swirl_x"])
    added: list[Any] = [0.0, 0.0, 0.0]
    for number in range(NUM_WAVES):
        wave = {name: waves[..., number, at] for name, at in WAVE.items()}
        high = xp.cos(bend_x * wave["x"] + bend_y * wave["y"] + wave["phase"])
        for at, name in enumerate(("red", "green", "blue")):
            added[at] = added[at] + high * wave[name]
    mixed = []
    for at, name in enumerate(("red", "green", "blue")):
        plain = column[name] + (column[f"{name}_end"] - column[name]) * way
        blots = 0.35 * xp.tanh(added[at] * column["hard"])
        mixed.append(plain + xp.where(column["hard"] > 0, blots, added[at]))
    return mixed


class Points(NamedTuple):
    """Points x, y at a time."""

    x: Any
    y: Any
    time_s: Any


def cover_at(sprite: Any, outline: Any, points: Points, *, xp: Any, first: Any = 0) -> Any:
    """Return how far, 0 to 1, a sprite[... 18] covers points.

    Its distances begin at `first` of the flat array `outline`.
    """
    column = {name: sprite[..., at] for name, at in SPRITE.items()}
    across = points.x - column["x"] - column["x_speed"] * points.time_s
    down = points.y - column["y"] - column["y_speed"] * points.time_s
    u = column["a"] * across + column["b"] * down
    v = column["c"] * across + column["d"] * down
    distance = _looked_up(outline, first, u, v, xp) - column["level"]
    distance = xp.where(column["rim"] > 0, xp.abs(distance) - column["rim"], distance)
    return xp.clip(0.5 - distance * column["scale"] / column["soft"], 0, 1)


def blend(colours: list[Any], sprite: Any, cover: Any) -> list[Any]:
    """Return the colours with a sprite's colour over them where it covers them."""
    return [
        colour + (sprite[..., SPRITE[name]] - colour) * cover
        for colour, name in zip(colours, ("red", "green", "blue"), strict=True)
    ]


def _looked_up(outline: Any, first: Any, u: Any, v: Any, xp: Any) -> Any:
    """Return the distances at u, v in the outline's units, between the four nearest points."""
    step = (SIDE - 1) / (2 * REACH)
    across = xp.clip((u + REACH) * step, 0, SIDE - 1.001)
    down = xp.clip((v + REACH) * step, 0, SIDE - 1.001)
    left, top = xp.floor(across), xp.floor(down)
    at = _whole(top * SIDE + left) + first
    along, below = across - left, down - top
    upper = xp.take(outline, at) * (1 - along) + xp.take(outline, at + 1) * along
    lower = xp.take(outline, at + SIDE) * (1 - along) + xp.take(outline, at + SIDE + 1) * along
    return upper * (1 - below) + lower * below


def _whole(numbers: Any) -> Any:
    """Return numbers as 64-bit integers."""
    return numbers.astype(np.int64) if isinstance(numbers, np.ndarray) else numbers.long()
