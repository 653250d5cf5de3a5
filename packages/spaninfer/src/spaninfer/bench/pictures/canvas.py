"""A scene while it is being composed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

import numpy as np

from spaninfer.bench.pictures.atlas import class_of
from spaninfer.bench.pictures.colours import BOXES, CLASHES, RGB, shade
from spaninfer.bench.pictures.scene import GROUND, NUM_SPRITES, NUM_WAVES, SPRITE, WAVE, Scene

COLOURS = tuple(BOXES)


@dataclass(frozen=True, slots=True)
class Style:
    """The world that a picture is drawn from: training's, or the held-out one."""

    is_held_out: bool
    fonts: int


@dataclass(frozen=True, slots=True)
class Pose:
    """The place of an outline: its middle, the pixels of a unit (across and down), its turn, and
    its pixels per second.
    """

    at: tuple[float, float]
    radius: float | tuple[float, float]
    angle: float = 0.0
    speed: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Look:
    """The look of an outline: its colour, how far beyond its line, as a rim, and by what name."""

    rgb: RGB
    level: float = 0.0
    rim: float = 0.0
    colour: str | None = None


@dataclass
class Canvas:
    """Sprites on a ground of `height` and `width` pixels; `times_s` are those of its frames."""

    rng: Random
    style: Style
    height: int
    width: int
    times_s: tuple[float, ...] = (0.0,)
    soft: float = 1.0
    ground_colour: str = "white"
    sprites: list[list[float]] = field(default_factory=list)
    ground: dict[str, float] = field(default_factory=dict)
    waves: list[list[float]] = field(default_factory=list)

    def shade(self, colour: str) -> RGB:
        """Return a shade of a named colour."""
        return shade(colour, self.rng, is_held_out=self.style.is_held_out)

    def fill(self, colour: str) -> None:
        """Lay the ground: one colour, sometimes lighter to one side, sometimes faintly waved."""
        rng = self.rng
        self.ground_colour = colour
        self.soft = rng.uniform(0.7, 2.0)
        first, last = self.shade(colour), self.shade(colour)
        if rng.random() < 0.7:
            last = first
        angle = rng.uniform(0, 2 * math.pi)
        reach = 1.5 * max(self.height, self.width)
        self.set_ground(first, last, math.cos(angle) / reach, math.sin(angle) / reach)
        if rng.random() < 0.15:
            high = rng.uniform(0.005, 0.03)
            for _ in range(2):
                self.wave(rng.uniform(2, 30), rng.uniform(0, 2 * math.pi), (high,) * 3)

    def set_ground(self, first: RGB, last: RGB, x: float, y: float) -> None:
        """Set the two colours of the ground and the way from one to the other."""
        names = ("red", "green", "blue")
        self.ground = dict(zip(names, first, strict=True))
        self.ground |= {f"{name}_end": value for name, value in zip(names, last, strict=True)}
        self.ground |= {"x": x, "y": y, "start": 0.3}

    def wave(self, length: float, angle: float, amplitudes: tuple[float, ...]) -> None:
        """Add a plane wave of a length in pixels."""
        turn = 2 * math.pi / length
        phase = self.rng.uniform(0, 2 * math.pi)
        self.waves.append([turn * math.cos(angle), turn * math.sin(angle), phase, *amplitudes])

    def place(self, outline: int, pose: Pose, look: Look) -> None:
        """Put an outline before the others."""
        radius = pose.radius
        across, down = radius if isinstance(radius, tuple) else (radius, radius)
        cos, sin = math.cos(pose.angle), math.sin(pose.angle)
        number = 0 if look.colour is None else 1 + COLOURS.index(look.colour)
        matrix = (cos / across, sin / across, -sin / down, cos / down)
        drawn = (math.sqrt(across * down), look.level, look.rim, *look.rgb, self.soft)
        named = class_of(outline), number
        self.sprites.append([outline, *pose.at, *matrix, *drawn, *pose.speed, *named])

    def colours_before_ground(self) -> list[str]:
        """Return the colours that can be told from the ground, in a drawn order."""
        ground = self.ground_colour
        fit = [
            colour
            for colour in COLOURS
            if colour != ground and frozenset((colour, ground)) not in CLASHES
        ]
        return self.rng.sample(fit, len(fit))

    def scene(self) -> Scene:
        """Return the scene."""
        sprites = np.zeros((NUM_SPRITES, len(SPRITE)), np.float32)
        if self.sprites:
            sprites[: len(self.sprites)] = self.sprites
        waves = np.zeros((NUM_WAVES, len(WAVE)), np.float32)
        if self.waves:
            waves[: len(self.waves)] = self.waves
        ground = np.array([self.ground.get(name, 0.0) for name in GROUND], np.float32)
        return Scene(self.height, self.width, sprites, ground, waves, self.times_s)
