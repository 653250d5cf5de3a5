"""The steps of towers that read patches: frames of images and videos."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.bound import TOWER
from spaninfer_engine.ops.patches import (
    Layout,
    axial_angles,
    blend,
    blends_with_class_tokens,
    layout,
)
from spaninfer_engine.ops.step import A, AttentionMetadata, Blend, Rotation, Step, metadata_of_runs
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.media import Levels, TowerInput
from spaninfer_engine.spec.tower_nodes import PatchTower, Resampler, num_extra
from spaninfer_engine.step.batch import Ints


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """The patches of one frame, or of as many as a patch spans."""

    features: NDArray[Any]  # [height * width + beside, numbers]: float32, or uint8 with levels
    height: int  # in patches
    width: int
    levels: Levels | None = None  # of bytes

    @property
    def num_rows(self) -> int:
        """Patches, and rows beside them."""
        return len(self.features)


class PatchReader(Generic[A]):
    """Reads images and videos frame by frame: no frame sees another."""

    def __init__(self, tower: PatchTower, ops: Ops[A]) -> None:
        self._tower, self._ops = tower, ops

    def pieces(self, item: TowerInput) -> Sequence[Frame]:
        """Return the frames of an image or a video; ValueError unless they fit the tower."""
        if self._tower.tile is not None:
            return self._tiles(item, self._tower.tile)
        frames, height, width = item.grid_thw or (0, 0, 0)
        shape, merge = item.features.shape, self._tower.merge
        count = self._tower.numbers // (1 if item.levels is None else item.levels.repeats)
        if shape != (frames * height * width, count) or not len(item.features):
            raise ValueError(
                f"patches are {list(shape)} for a grid of {item.grid_thw}; the tower reads one row "
                f"of {count} numbers for each place of (frames, rows, columns)"
            )
        if height % merge or width % merge or item.num_tokens * merge**2 != shape[0]:
            raise ValueError(
                f"a grid of {item.grid_thw} makes no {item.num_tokens} tokens of {merge} x {merge} "
                "patches each"
            )
        parts = np.split(item.features, frames)
        return [Frame(part, height, width, item.levels) for part in parts]

    def _tiles(self, item: TowerInput, side: int) -> Sequence[Frame]:
        """Return tiles of `side` patches a side, cut into patches; the rest of pixels is left."""
        tower, shape = self._tower, item.features.shape
        least, rows = side * tower.patch, tower.rows_of(side**2)
        if len(shape) != 4 or shape[1] != tower.channels or not shape[0]:
            raise ValueError(
                f"tiles are {list(shape)}; the tower reads [n, {tower.channels}, h, w]"
            )
        if any(not least <= pixels < least + tower.patch for pixels in shape[2:]):
            raise ValueError(
                f"tiles are {shape[2]} x {shape[3]} pixels; the tower reads {least} x {least}"
            )
        mixture, count = item.mixture, shape[0] * rows
        made = count if mixture is None else len(mixture.rows)
        if item.num_tokens != made or (
            mixture is not None and mixture.rows.max(initial=0) >= count + num_extra(tower)
        ):
            raise ValueError(f"{shape[0]} tiles of {rows} rows make no {item.num_tokens} tokens")
        pixels = item.features[:, :, :least, :least]
        return [Frame(_patches(tile, tower), side, side) for tile in pixels]

    def compute(
        self, frames: Sequence[Any], run: Callable[..., Generator[int, None, A]]
    ) -> Generator[int, None, tuple[A, Sequence[Ints]]]:
        """Return rows, and which of them are those of each frame."""
        order = layout(self._tower, [(frame.height, frame.width) for frame in frames])
        made = yield from run(TOWER, self._step(frames, order))
        ends = np.cumsum([self._tower.rows_of(frame.num_rows) for frame in frames])
        rows = np.split(self._back(order, int(ends[-1])), ends[:-1])
        if self._tower.class_token is not None:  # which with what is beside it makes the last row
            rows = [each[:-1] for each in rows]
        return made, rows

    def _back(self, order: Layout, count: int) -> Ints:
        """Return which of `count` rows that were made is each of the frames' own order."""
        if isinstance(self._tower.merger, Resampler):
            return np.arange(count, dtype=np.int32)
        return np.argsort(order.token_order).astype(np.int32)

    def _step(self, frames: Sequence[Frame], order: Layout) -> Step[A]:
        tower, ops = self._tower, self._ops
        parts = [self._on_device(frame) for frame in frames]
        features = parts[0] if len(parts) == 1 else ops.stack_rows(parts)
        if tower.window is not None:  # otherwise they come as they lie
            features = ops.take_rows(features, order.patches(tower.merge**2))
        count = order.places.shape[1]
        num_made = sum(tower.rows_of(frame.num_rows) for frame in frames)
        windows: AttentionMetadata[A] = metadata_of_runs(order.window_lens)
        return Step(
            token_ids=ops.from_host(np.zeros(count, np.int32)),
            positions=ops.from_host(order.places),
            rotations=tuple(
                Rotation(*map(ops.from_host, axial_angles(rope, order.places)))
                for rope in tower.ropes
            ),
            logit_indices=ops.from_host(np.arange(num_made, dtype=np.int32)),
            attention=metadata_of_runs(order.frame_lens, windows),
            features=features,
            blends=self._blends(frames, order),
        )

    def _on_device(self, frame: Frame) -> A:
        if frame.levels is None:
            return self._ops.from_host(frame.features)
        return self._ops.from_levels(frame.features, frame.levels)

    def _blends(self, frames: Sequence[Frame], order: Layout) -> tuple[Blend[A], ...]:
        tower, sizes = self._tower, [(frame.height, frame.width) for frame in frames]
        if tower.class_token is None:
            made = tuple(
                blend(square, sizes, order.frame_lens, order.places) for square in tower.squares
            )
        else:
            made = blends_with_class_tokens(tower.squares, sizes, order, tower)
        return tuple(Blend(*map(self._ops.from_host, each)) for each in made)


def _patches(tile: NDArray[np.float32], tower: PatchTower) -> NDArray[np.float32]:
    """Return the patches of tile[C H W] as rows [N C*P*P], those of a token next to each other;
    behind them zeros for the rows beside them.
    """
    channels, patch, merge = tower.channels, tower.patch, tower.merge
    side = tile.shape[1] // patch // merge
    cells = tile.reshape(channels, side, merge, patch, side, merge, patch)
    rows = cells.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, channels * patch**2)
    return np.pad(rows, ((0, tower.num_beside), (0, 0)))
