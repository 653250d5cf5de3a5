"""A tower on a backend whose indices lie on the host: images and videos become rows for tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.errors import NoMemory
from spaninfer_engine.media import TowerInput
from spaninfer_engine.ops.patches import Layout, axial_angles, blend, layout
from spaninfer_engine.ops.step import A, AttentionMetadata, Blend, Rotation, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.spec.tower_nodes import PatchTower, Tower
from spaninfer_engine.step.batch import Ints, cut_batch
from spaninfer_engine.step.sequences import NO_SECOND

MAX_PATCHES = 16_384
"""Patches of a batch, unless a single frame has more: a picture of 1,792 squared has as many. What
lies between the operators of a 7B model's tower takes 90 kB per patch, 1.4 GiB then."""


@dataclass(frozen=True, eq=False, slots=True)
class Encoding(Generic[A]):
    """The rows of one image, video or clip.

    rows[num_tokens hidden] replace the embeddings of its tokens; deep[j], of the same shape, is
    added to the output of the decoder's layer j.
    """

    rows: A
    deep: tuple[A, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """The patches of one frame (or of as many as a patch spans), and whose it is."""

    owner: int
    features: NDArray[np.float32]  # [height * width, numbers]
    height: int  # in patches
    width: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in patches."""
        return self.height, self.width


class HostTower(Generic[A]):
    """A tower whose program is bound when it is first needed."""

    def __init__(
        self, bind: Callable[[], Callable[[Step[A]], A]], ops: Ops[A], tower: Tower
    ) -> None:
        self.tower, self._bind, self._ops = tower, bind, ops
        self._forward: Callable[[Step[A]], A] | None = None

    def load(self) -> None:
        """Read and pack the weights, if that has not been done."""
        if self._forward is None:
            self._forward = self._bind()

    def encode(self, inputs: Sequence[TowerInput]) -> list[Encoding[A]]:
        """Return the rows of every input, in order, computed in batches.

        ValueError for features that are not those of this tower; NoMemory where a batch has none.
        """
        frames = [frame for owner, each in enumerate(inputs)
                  for frame in frames_of(self.tower, each, owner)]  # fmt: skip
        parts: list[list[A]] = [[] for _ in inputs]
        for batch in batches(frames):
            for frame, rows in zip(batch, self._rows(batch), strict=True):
                parts[frame.owner].append(rows)
        return [self._encoding(each) for each in parts]

    def _encoding(self, parts: Sequence[A]) -> Encoding[A]:
        tower, ops = self.tower, self._ops
        sizes = (tower.width,) * (1 + len(tower.deepstack))
        whole = parts[0] if len(parts) == 1 else ops.stack_rows(parts)
        rows, *deep = ops.split(whole, sizes=sizes)
        return Encoding(rows, tuple(deep))

    def _rows(self, frames: Sequence[Frame]) -> Iterator[A]:
        """Yield the rows of every frame."""
        order = layout(self.tower, [frame.size for frame in frames])
        made = self._compute(patch_step(self.tower, frames, order, self._ops))
        back = np.argsort(order.token_order).astype(np.int32)
        lens = order.frame_lens // self.tower.merge**2
        for rows in np.split(back, np.cumsum(lens)[:-1]):
            yield self._ops.take_rows(made, rows)

    def _compute(self, step: Step[A]) -> A:
        self.load()
        assert self._forward is not None
        try:
            self._ops.prepare(step)
            return self._forward(step)
        except self._ops.memory_errors:
            pass
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        raise NoMemory(step.num_tokens, self._ops.available_bytes())


def frames_of(tower: PatchTower, item: TowerInput, owner: int = 0) -> Iterator[Frame]:
    """Yield the frames of an image or a video; ValueError unless they are what the tower reads."""
    frames, height, width = item.grid_thw or (0, 0, 0)
    shape, merge = item.features.shape, tower.merge
    if shape != (frames * height * width, tower.numbers) or not len(item.features):
        raise ValueError(
            f"patches are {list(shape)} for a grid of {item.grid_thw}; the tower reads one row of "
            f"{tower.numbers} numbers for each place of (frames, rows, columns)"
        )
    if height % merge or width % merge or item.num_tokens * merge**2 != shape[0]:
        raise ValueError(
            f"a grid of {item.grid_thw} makes no {item.num_tokens} tokens of {merge} x {merge} "
            "patches each"
        )
    for part in np.split(item.features, frames):
        yield Frame(owner, part, height, width)


def batches(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Yield frames in order, as many at once as MAX_PATCHES allows, at least one."""
    start = patches = 0
    for end, frame in enumerate(frames):
        if end > start and patches + len(frame.features) > MAX_PATCHES:
            yield frames[start:end]
            start, patches = end, 0
        patches += len(frame.features)
    if start < len(frames):
        yield frames[start:]


def patch_step(tower: PatchTower, frames: Sequence[Frame], order: Layout, ops: Ops[A]) -> Step[A]:
    """Return the context in which a tower's program computes frames, in this order."""
    features = np.concatenate([frame.features for frame in frames])
    if tower.window is not None:  # otherwise they come as they lie
        features = features[order.patches(tower.merge**2)]
    count = len(features)
    no_tokens = np.zeros(count, np.int32)
    windows: AttentionMetadata[A] = _metadata(order.window_lens)
    return Step(
        token_ids=ops.from_host(no_tokens),
        positions=ops.from_host(order.places),
        rotations=tuple(
            Rotation(*map(ops.from_host, axial_angles(rope, order.places))) for rope in tower.ropes
        ),
        logit_indices=ops.from_host(np.arange(count // tower.merge**2, dtype=np.int32)),
        attention=_metadata(order.frame_lens, windows),
        features=ops.from_host(features),
        blend=_blend(tower, frames, order, ops),
    )


def _blend(
    tower: PatchTower, frames: Sequence[Frame], order: Layout, ops: Ops[A]
) -> Blend[A] | None:
    if tower.positions is None:
        return None
    sizes = [frame.size for frame in frames]
    taps = blend(tower.positions.side, sizes, order.frame_lens, order.places)
    return Blend(*map(ops.from_host, taps))


def _metadata(lens: Ints, windows: AttentionMetadata[A] | None = None) -> AttentionMetadata[A]:
    """Return the metadata of rows that attend within runs of these lengths; nothing is kept."""
    batch = cut_batch(lens)
    return AttentionMetadata(
        batch=batch,
        positions=batch.positions(),
        token_rows=batch.token_rows(),
        tables=(),
        slot_mapping=(),
        caches=(),
        second_from=np.full(len(lens), NO_SECOND),
        windows=windows,
    )
