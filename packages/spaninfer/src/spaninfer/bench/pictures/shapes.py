"""The outlines of the shapes, as signed distances: negative inside, in units of the radius."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Field: TypeAlias = NDArray[np.float64]


def distance_to(pieces: NDArray[np.float64], x: Field, y: Field) -> Field:
    """Return the distance of the points to the nearest of straight pieces [pieces 2 2]."""
    nearest = np.full(x.shape, np.inf)
    for (ax, ay), (bx, by) in pieces:
        dx, dy = bx - ax, by - ay
        along = ((x - ax) * dx + (y - ay) * dy) / max(dx * dx + dy * dy, 1e-12)
        along = np.clip(along, 0, 1)
        nearest = np.minimum(nearest, np.hypot(x - ax - along * dx, y - ay - along * dy))
    return nearest


def polygon(corners: NDArray[np.float64], x: Field, y: Field) -> Field:
    """Return the signed distance to a closed polygon corners[n 2]."""
    following = np.roll(corners, -1, axis=0)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, following, strict=True):
        crosses = (ay > y) != (by > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside ^= crosses & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    distance = distance_to(np.stack((corners, following), axis=1), x, y)
    return np.where(inside, -distance, distance)


def _turns(count: int, radii: tuple[float, ...]) -> NDArray[np.float64]:
    """Return count corners around the centre, from the top, with the radii in turn."""
    angles = 2 * np.pi * np.arange(count) / count
    radius = np.array([radii[number % len(radii)] for number in range(count)])
    return np.stack((radius * np.sin(angles), -radius * np.cos(angles)), axis=1)


def _heart() -> NDArray[np.float64]:
    t = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    down = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack((16 * np.sin(t) ** 3, -down - 2.5), axis=1) / 16.5


def _box(x: Field, y: Field, half_width: float, half_height: float) -> Field:
    across, down = np.abs(x) - half_width, np.abs(y) - half_height
    outside = np.hypot(np.maximum(across, 0), np.maximum(down, 0))
    return outside + np.minimum(np.maximum(across, down), 0)


_LOWER: Final = np.array((0.0, 0.15))  # so that a triangle's middle is its box's
_DIAMOND: Final = np.array([(0, -1), (0.62, 0), (0, 1), (-0.62, 0)])

SHAPES: Final[Mapping[str, Callable[[Field, Field], Field]]] = MappingProxyType(
    {
        "circle": lambda x, y: np.hypot(x, y) - 0.95,
        "square": lambda x, y: _box(x, y, 0.82, 0.82),
        "triangle": lambda x, y: polygon(_turns(3, (1.05,)) + _LOWER, x, y),
        "star": lambda x, y: polygon(_turns(10, (1.05, 0.44)), x, y),
        "heart": lambda x, y: polygon(_heart(), x, y),
        "cross": lambda x, y: np.minimum(_box(x, y, 0.95, 0.3), _box(x, y, 0.3, 0.95)),
        "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.23,
        "moon": lambda x, y: np.maximum(np.hypot(x, y) - 0.95, 0.82 - np.hypot(x - 0.5, y + 0.1)),
        "diamond": lambda x, y: polygon(_DIAMOND, x, y),
        "rectangle": lambda x, y: _box(x, y, 1.0, 0.5),
    }
)
"""Signed distances by the name of the shape."""


def bar(x: Field, y: Field) -> Field:
    """Return the signed distance to the unit square that charts stretch to their bars."""
    return _box(x, y, 1.0, 1.0)
