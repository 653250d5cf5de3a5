"""Scenes drawn on the GPU, as the patches that the model's processor would cut."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer.bench.pictures.atlas import SIDE
from spaninfer.bench.pictures.draw import Points, blend, cover_at, ground_at
from spaninfer.bench.pictures.scene import NUM_SPRITES, SPRITE
from torch import Tensor

PATCH = 16
CELLS = 50
PATCHES = 4 * CELLS
_POINTS = PATCH * PATCH
_PAD_FRAME = 99
_ROUND = 96
_SEEN = 0.03  # of a cell, for what is in it to count


@dataclass(frozen=True)
class Layout:
    """Places of patches [N P]: their frame (99: none), row and column, and their picture's size."""

    frame: Tensor
    row: Tensor
    column: Tensor
    num_rows: Tensor
    num_columns: Tensor


def layout_of(grid: Tensor) -> Layout:
    """Return where the patches of scenes are; grid[N 3] are pairs, rows and columns of cells."""
    pairs, rows, columns = (grid[:, at, None].long() for at in range(3))
    number = torch.arange(PATCHES, device=grid.device)[None]
    per_frame = (rows * columns * 4).clamp(min=1)
    frame = torch.where(number < pairs * per_frame, number // per_frame, _PAD_FRAME)
    cell, inner = number % per_frame // 4, number % 4
    wide = columns.clamp(min=1)
    row, column = cell // wide * 2 + inner // 2, cell % wide * 2 + inner % 2
    return Layout(frame, row, column, 2 * rows.clamp(min=1), 2 * wide)


class Painter:
    """Draws scenes with outlines that lie on the device, one after another."""

    def __init__(self, outlines: NDArray[np.float32], device: str, *, compiled: bool) -> None:
        self.outlines = torch.from_numpy(outlines).to(device)
        self.ground = torch.compile(_ground, dynamic=False) if compiled else _ground
        self.sprite = torch.compile(_sprite, dynamic=False) if compiled else _sprite

    @torch.no_grad()
    def patches(self, scenes: dict[str, Tensor], num_clips: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return patches[N P 1536], normalised, and what is in each cell[N 50]: class and colour.

        Only the first num_clips scenes move; the others repeat their frame. Scenes are drawn _ROUND
        at a time, so that one compiled function draws them all.
        """
        layout = layout_of(scenes["grid"])
        last = scenes["times"].shape[1] - 1
        pair = layout.frame.clamp(max=last)[..., None].expand(-1, -1, 2)
        times = scenes["times"].gather(1, pair)
        given = (
            *(scenes[name] for name in ("sprites", "ground", "waves")),
            layout.row,
            layout.column,
        )
        drawn = [
            self._frame(*(each[at : at + _ROUND] for each in (*given, times[..., 0])))
            for at in range(0, len(times), _ROUND)
        ]
        first, kinds, colours = (torch.cat(each) for each in zip(*drawn, strict=True))
        moved = [
            self._frame(
                *(each[at : min(at + _ROUND, num_clips)] for each in (*given, times[..., 1]))
            )[0]
            for at in range(0, num_clips, _ROUND)
        ]
        second = torch.cat((*moved, first[num_clips:]))
        return torch.stack((first, second), dim=3).flatten(2), kinds, colours

    def _frame(
        self,
        sprites: Tensor,
        ground: Tensor,
        waves: Tensor,
        row: Tensor,
        column: Tensor,
        time: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return colours[N P 3 256] at the times[N P] of the patches, and what is in the cells."""
        count = len(sprites)
        point = torch.arange(_POINTS, device=row.device)
        x = (column[..., None] * PATCH + point % PATCH + 0.5).flatten(1)
        y = (row[..., None] * PATCH + point // PATCH + 0.5).flatten(1)
        when = time[..., None].expand(-1, -1, _POINTS).flatten(1)
        pixels = self.ground(ground, waves, x, y)
        covers = []
        for number in range(NUM_SPRITES):
            pixels, cover = self.sprite(pixels, sprites[:, number, None], self.outlines, x, y, when)
            covers.append(cover)
        kinds, colours = _named(torch.stack(covers, dim=-1), sprites)
        return _as_seen(pixels.view(3, count, PATCHES, _POINTS).permute(1, 2, 0, 3)), kinds, colours


def _ground(ground: Tensor, waves: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the ground's colours[3 N points]."""
    return torch.stack(ground_at(ground[:, None], waves[:, None], x, y, xp=torch))


def _sprite(
    pixels: Tensor, sprite: Tensor, outlines: Tensor, x: Tensor, y: Tensor, when: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the colours with a sprite[N 1 18] before them, and its share of each cell[N 50]."""
    first = sprite[..., SPRITE["outline"]].long() * (SIDE * SIDE)
    is_used = sprite[..., SPRITE["scale"]] > 0
    whole = torch.where(is_used[..., None], sprite, torch.ones_like(sprite))
    cover = cover_at(whole, outlines, Points(x, y, when), xp=torch, first=first) * is_used
    blended = torch.stack(blend(list(pixels), whole, cover))
    return blended, cover.view(len(cover), CELLS, -1).mean(-1)


def _named(shares: Tensor, sprites: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class and the colour of what covers most of each cell, 0 for nothing."""
    most, top = shares.max(dim=-1)
    names = []
    for name, first in (("kind", 1), ("colour", 0)):
        values = sprites[:, None, :, SPRITE[name]].expand(-1, CELLS, -1)
        found = values.gather(2, top[..., None]).squeeze(-1) + first
        names.append(torch.where(most > _SEEN, found, 0.0).long())
    return names[0], names[1]


def _as_seen(pixels: Tensor) -> Tensor:
    """Return colours with a little noise, in 256 steps, as -1 .. 1."""
    grain = 0.02 * torch.rand((len(pixels), 1, 1, 1), device=pixels.device)
    noisy = pixels + grain * torch.randn_like(pixels)
    return (noisy.clamp(0, 1) * 255).round() / 127.5 - 1


def to_device(arrays: dict[str, np.ndarray], device: str) -> dict[str, Tensor]:
    """Return arrays as tensors on the device."""
    return {
        name: torch.from_numpy(np.ascontiguousarray(value)).to(device, non_blocking=True)
        for name, value in arrays.items()
    }
