"""Media as a model reads them: what towers take of them, and where they stand in a prompt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

MediaKind: TypeAlias = Literal["image", "video", "audio"]


class Mixture(NamedTuple):
    """The rows of a tower's output that make up each token: int32 [tokens k], and their weights
    float32 [tokens k]. Behind the last row of an input come those that the model brings itself.
    """

    rows: NDArray[np.int32]
    weights: NDArray[np.float32]


class Levels(NamedTuple):
    """The numbers that bytes of patches stand for: float32 [channels 256]; a frame is `repeats`."""

    values: NDArray[np.float32]
    repeats: int

    def numbers(self, codes: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the numbers [N channels * repeats * K] of patches [N channels * K]."""
        channels = codes.reshape(len(codes), len(self.values), 1, -1)
        made = np.empty(channels.shape, np.float32)
        for channel, values in enumerate(self.values):
            made[:, channel] = values[channels[:, channel]]
        return np.repeat(made, self.repeats, axis=2).reshape(len(codes), -1)


@dataclass(frozen=True, eq=False, slots=True)
class TowerInput:
    """The numbers that a tower reads of one image, video or audio clip.

    Attributes:
        kind: What was prepared.
        features: float32, or bytes where there are `levels`. Images and videos of the Qwen-VL
            families: patches [num_patches, channels * frames * patch * patch], the patches of one
            merged row next to each other. Towers for pictures of one size: tiles
            [num_tiles, 3, height, width]. Audio: a log-mel spectrogram [num_mels, num_frames].
        num_tokens: Rows of the tower's output, which replace as many placeholder tokens.
        digest: SHA-256 of the media's bytes and of everything else that decides the features; of a
            tenant's prompt (`PromptMedia.salted`) one that no other tenant's media have.
        grid_thw: Patches along time, height and width; None where the tower needs no grid.
        num_valid: Audio: frames that hold sound, the others are padding; None if all do.
        mixture: How tokens are made of the tower's rows; None where they are its rows.
        levels: The numbers that bytes of patches stand for; None where features are numbers.
    """

    kind: MediaKind
    features: NDArray[Any]
    num_tokens: int
    digest: bytes
    grid_thw: tuple[int, int, int] | None = None
    num_valid: int | None = None
    mixture: Mixture | None = None
    levels: Levels | None = None

    @property
    def numbers(self) -> NDArray[np.float32]:
        """The features as numbers, made now where they are bytes."""
        return self.features if self.levels is None else self.levels.numbers(self.features)


@dataclass(frozen=True, eq=False, slots=True)
class MediaItem:
    """One image, video or clip of a prompt.

    Its rows replace, in order, the placeholder tokens of `runs`: (first position, number of
    tokens), ascending, `input.num_tokens` in all.
    """

    input: TowerInput
    runs: tuple[tuple[int, int], ...]


class MediaRun(NamedTuple):
    """Positions [start, stop) of a sequence that rows of one encoding replace, from `row` on."""

    start: int
    stop: int
    item: int  # index in `PromptMedia.items`
    digest: bytes
    row: int


@dataclass(frozen=True, eq=False, slots=True)
class PromptMedia:
    """The media of a prompt, in the order of their first tokens.

    `positions` int32 [axes, prompt_len] are what rotary embeddings see; None where every axis
    counts the tokens. Behind the prompt, a token at index n has position n + `delta`. Where media
    are `bidirectional`, the tokens of a run see each other, and no step computes a part of them.
    """

    items: tuple[MediaItem, ...]
    positions: NDArray[np.int32] | None = None
    delta: int = 0
    bidirectional: bool = False

    def delta_from(self) -> int:
        """Return the index from which on every axis of a token at index n is n + `delta`."""
        if self.positions is None:
            return 0
        ahead = self.positions - np.arange(self.positions.shape[1], dtype=np.int32)
        differing = np.flatnonzero((ahead != self.delta).any(0))
        return int(differing[-1]) + 1 if len(differing) else 0

    def salted(self, tenant: str) -> PromptMedia:
        """Return the same media under digests of this tenant's: nothing kept by digest is shared.

        How fast an answer begins would else tell that another tenant has sent a picture.
        """
        if not tenant:
            return self
        return replace(self, items=tuple(_salted(item, tenant) for item in self.items))

    def runs(self) -> tuple[MediaRun, ...]:
        """Return the runs of all items, ascending."""
        return tuple(sorted(run for at, item in enumerate(self.items) for run in _runs(at, item)))


def _salted(item: MediaItem, tenant: str) -> MediaItem:
    digest = sha256(item.input.digest + repr(tenant).encode()).digest()
    return replace(item, input=replace(item.input, digest=digest))


def _runs(index: int, item: MediaItem) -> Iterator[MediaRun]:
    row = 0
    for first, length in item.runs:
        yield MediaRun(first, first + length, index, item.input.digest, row)
        row += length


def runs_within(runs: Sequence[MediaRun], start: int, stop: int) -> Iterator[MediaRun]:
    """Yield what of `runs`, which ascend, lies at positions [start, stop).

    >>> [tuple(run) for run in runs_within([MediaRun(2, 6, 0, b"", 0)], 4, 9)]
    [(4, 6, 0, b'', 2)]
    """
    for index in range(bisect_right(runs, start, key=_STOP), len(runs)):
        run = runs[index]
        if run.start >= stop:
            return
        first = max(run.start, start)
        yield run._replace(start=first, stop=min(run.stop, stop), row=run.row + first - run.start)


_STOP = attrgetter("stop")
