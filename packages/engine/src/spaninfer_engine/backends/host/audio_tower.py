"""The steps of towers that read spectrograms."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.backends.host.tower_step import plain_step
from spaninfer_engine.ops.bound import STEM, TOWER
from spaninfer_engine.ops.clips import cut, num_rows, num_tokens, strided, unfolded
from spaninfer_engine.ops.step import A, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.spec.tower_nodes import TAPS, AudioTower, num_extra
from spaninfer_engine.step.batch import Ints


@dataclass(frozen=True, eq=False, slots=True)
class Clip:
    """The frames of one clip that its rows are made of, each with its neighbours."""

    frames: NDArray[np.float32]  # [F, 3 * mels]
    num_rows: int
    num_tokens: int


class ClipReader(Generic[A]):
    """Reads clips as a whole; what is padding is not seen."""

    def __init__(self, tower: AudioTower, ops: Ops[A]) -> None:
        self._tower, self._ops = tower, ops

    def pieces(self, item: TowerInput) -> Sequence[Clip]:
        """Return the one clip of an input; ValueError unless it fits the tower."""
        tower, shape = self._tower, item.features.shape
        valid = shape[-1] if item.num_valid is None else item.num_valid
        most = 2 * tower.max_rows
        if len(shape) != 2 or shape[0] != tower.mels or not 1 <= valid <= shape[1] <= most:
            raise ValueError(
                f"a spectrogram of {list(shape)} with {valid} frames of sound; the tower reads "
                f"{tower.mels} bands of 1 to {most:,} frames"
            )
        rows = num_rows(valid)
        tokens = num_tokens(rows, tower.pool)
        made = tokens + num_extra(tower)
        if item.num_tokens != made or not tokens:
            raise ValueError(
                f"{valid} frames of sound make {made} tokens, and {item.num_tokens} are said; "
                "at least 1 is"
            )
        return [Clip(unfolded(item.features, min(shape[1], 2 * rows)), rows, tokens)]

    def compute(
        self, clips: Sequence[Any], run: Callable[..., Generator[int, None, A]]
    ) -> Generator[int, None, tuple[A, Sequence[Ints]]]:
        """Return rows, and which of them are those of each clip."""
        pool, rows = self._tower.pool, [clip.num_rows for clip in clips]
        convolved = yield from self._convolved(clips, run)
        made = yield from run(TOWER, self._layers(convolved, rows, clips))
        ends = np.cumsum([-(-real // pool) for real in rows])
        firsts = np.concatenate([[0], ends[:-1]])
        return made, [
            np.arange(first, first + clip.num_tokens, dtype=np.int32)
            for first, clip in zip(firsts, clips, strict=True)
        ]

    def _convolved(
        self, clips: Sequence[Clip], run: Callable[..., Generator[int, None, A]]
    ) -> Generator[int, None, A]:
        """Return what the first convolution makes of all frames, and a row of zeros behind."""
        frames, ops = np.concatenate([clip.frames for clip in clips]), self._ops
        lens = np.array([len(clip.frames) for clip in clips], np.int32)
        places = np.zeros(len(frames), np.int32)
        step = plain_step(ops, places, lens, features=ops.from_host(frames))
        silence = ops.from_host(np.zeros((1, self._tower.hidden), np.float32))
        made = yield from run(STEM, step)
        return ops.stack_rows([made, silence])

    def _layers(self, made: A, rows: Sequence[int], clips: Sequence[Clip]) -> Step[A]:
        pool, ops = self._tower.pool, self._ops
        seen, places = strided([len(clip.frames) for clip in clips], rows, pool)
        features = ops.join_rows(ops.take_rows(made, seen), count=TAPS)
        wanted = len(places) // pool
        return plain_step(ops, places, cut(rows, pool), wanted=wanted, features=features)
