"""Positions of the patches of frames, and the order in which a tower computes them.

The rows of a frame come token by token: the `merge` squared patches of a token are neighbours, row
by row (Qwen2-VL's order). Where a tower has windows, tokens of a window are made neighbours too, so
that frames and windows both are runs of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import cos_sin

from spaninfer_engine.ops.step import Blend, Ints, Rotation
from spaninfer_engine.spec.attention_nodes import AxialRope
from spaninfer_engine.spec.tower_nodes import PatchTower, Square

Floats = NDArray[np.float32]
Size = tuple[int, int]  # height and width of a frame, in patches


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """The order of the patches of some frames: T patches of W tokens, in R frames.

    `token_order`[W] says which token of the frames, in their own order, comes at each place.
    """

    places: Ints  # [2 T] row and column of every patch in its frame
    frame_lens: Ints  # [R] patches
    window_lens: Ints  # [N] patches; those of frames where a tower has no windows
    token_order: Ints  # [W]

    def patches(self, count: int) -> Ints:
        """Return which patch of the frames comes at each place, [T], of `count` per token."""
        patches: Ints = (self.token_order[:, None] * count + np.arange(count)).reshape(-1)
        return patches.astype(np.int32)


def layout(tower: PatchTower, sizes: Sequence[Size]) -> Layout:
    """Return the order in which a tower computes the patches of frames of these sizes."""
    merge, side = tower.merge, (tower.window or 0) // tower.merge
    if tower.class_token is not None:
        return _with_class_tokens(sizes, merge)
    orders, windows, start = [], [], 0
    for height, width in sizes:
        cells = np.indices((height // merge, width // merge), np.int32).reshape(2, -1)
        order, lens = _in_windows(cells, side)
        orders.append(order + start)
        windows.append(lens * merge**2)
        start += len(order)
    token_order = np.concatenate(orders)
    frame_lens = np.array([height * width for height, width in sizes], np.int32)
    places = np.concatenate([_places(*size, merge) for size in sizes], axis=1)
    by_token = places.reshape(2, -1, merge**2)[:, token_order]
    return Layout(by_token.reshape(2, -1), frame_lens, np.concatenate(windows), token_order)


def _with_class_tokens(sizes: Sequence[Size], merge: int) -> Layout:
    """Return the same where a class token comes behind the patches of a frame, and rows that see
    each other alone, so that those of tokens are whole. Patches are at places from 1 on.
    """
    beside = merge**2
    behind = np.zeros((2, beside), np.int32)
    parts = [part for size in sizes for part in (_places(*size, merge) + 1, behind)]
    runs = [run for height, width in sizes for run in (height * width + 1, beside - 1) if run]
    places, lens = np.concatenate(parts, axis=1), np.array(runs, np.int32)
    return Layout(places, lens, lens, np.arange(places.shape[1] // beside, dtype=np.int32))


def _in_windows(cells: Ints, side: int) -> tuple[Ints, Ints]:
    """Return the order of tokens at cells[2 W] by windows of `side` squared, and windows' sizes."""
    if not side:
        return np.arange(cells.shape[1], dtype=np.int32), np.array([cells.shape[1]], np.int32)
    row, column = cells // side
    window = row * (column.max() + 1) + column
    order = np.argsort(window, kind="stable").astype(np.int32)
    return order, np.bincount(window).astype(np.int32)


def _places(height: int, width: int, merge: int) -> Ints:
    """[2 T]: row and column of the patches of a frame, token by token."""
    grid = np.indices((height, width), np.int32)
    blocks = grid.reshape(2, height // merge, merge, width // merge, merge)
    return blocks.transpose(0, 1, 3, 2, 4).reshape(2, -1)


def axial_angles(rope: AxialRope, places: Ints) -> Rotation[Floats]:
    """Return cos and sin [T D/2] at places[2 T]: first those of the row, then of the column, or
    the other way round.
    """
    pairs = rope.dim // 4
    row = np.arange(pairs, dtype=np.float32)
    column = row + np.float32(0.5 if rope.axes == "turns" else 0)
    both = (rope.theta ** (-np.concatenate([row, column]) / np.float32(pairs))).astype(np.float32)
    order = places[::-1] if rope.axes == "columns" else places
    return Rotation(*cos_sin(order, both, sections=(pairs, pairs)))


def blend(
    square: Square, sizes: Sequence[Size], frame_lens: Ints, places: Ints
) -> Blend[NDArray[np.generic]]:
    """Return the rows of a square table[side * side] around each patch, and their weights: 4 of
    bilinear interpolation, 16 of bicubic.
    """
    taps = _TAPS[square.stretch]
    lens = (np.repeat([size[axis] for size in sizes], frame_lens) for axis in (0, 1))
    (rows, down), (columns, along) = (
        taps(place, each, square.side) for place, each in zip(places, lens, strict=True)
    )
    found = rows[:, :, None] * square.side + columns[:, None]
    weights = down[:, :, None] * along[:, None]
    shape = len(found), -1
    return Blend(found.reshape(shape).astype(np.int32), weights.reshape(shape).astype(np.float32))


def blends_with_class_tokens(
    squares: Sequence[Square], sizes: Sequence[Size], order: Layout, tower: PatchTower
) -> tuple[Blend[NDArray[np.generic]], ...]:
    """Return the blends of tables of which one row is a class token's position; behind them that
    of the class token itself, and that of a row which is added to patches alone. Frames of one size
    have the class token first of the rows beside their patches.
    """
    beside = tower.num_beside
    num_frames, patches = len(sizes), sizes[0][0] * sizes[0][1]
    places = order.places.reshape(2, num_frames, -1)[:, :, :patches].reshape(2, -1) - 1
    lens = np.full(num_frames, patches, np.int32)
    behind = (0, 0), (0, beside), (0, 0)
    made = []
    for square in squares:
        rows, weights = (
            np.pad(each.reshape(num_frames, patches, -1), behind)
            for each in blend(square, sizes, lens, places)
        )
        rows[:, :patches] += tower.class_first
        rows[:, patches, 0] = 0 if tower.class_first else square.side**2
        weights[:, patches, 0] = 1
        made.append(Blend(*(each.reshape(-1, each.shape[-1]) for each in (rows, weights))))
    for alone in (slice(patches, patches + 1), slice(patches)):
        shares = np.zeros((num_frames, patches + beside, 4), np.float32)
        shares[:, alone, 0] = 1
        made.append(Blend(np.zeros((shares.size // 4, 4), np.int32), shares.reshape(-1, 4)))
    return tuple(made)


def _linear_taps(place: Ints, lens: Ints, side: int) -> tuple[Ints, Floats]:
    """Return two places of a table around each of `lens`, whose corners lie on the table's."""
    at = place * ((side - 1) / np.maximum(lens - 1, 1))
    low = np.minimum(at.astype(np.int32), side - 1)
    share = (at - low).astype(np.float32)
    return np.stack([low, np.minimum(low + 1, side - 1)], 1), np.stack([1 - share, share], 1)


def _cubic_taps(place: Ints, lens: Ints, side: int) -> tuple[Ints, Floats]:
    """Return four places of a table around each of `lens`, whose edges lie on the table's.

    Keys' cubic convolution (1981) with a = -3/4; beyond the edge, its row counts again. So does
    torch, which the authors interpolate with.
    """
    at = (place + 0.5) * (side / lens) - 0.5
    low: Ints = np.floor(at).astype(np.int32)
    away = np.abs((at - low)[:, None] - np.arange(-1, 3))
    near = 1.25 * away**3 - 2.25 * away**2 + 1
    far = -0.75 * (away**3 - 5 * away**2 + 8 * away - 4)
    rows: Ints = np.clip(low[:, None] + np.arange(-1, 3, dtype=np.int32), 0, side - 1)
    return rows, np.where(away <= 1, near, far).astype(np.float32)


_TAPS = {"bilinear": _linear_taps, "bicubic": _cubic_taps}
