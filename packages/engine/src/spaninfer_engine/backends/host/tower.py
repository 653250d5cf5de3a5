"""Towers on backends whose indices lie on the host: media become rows for tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from spaninfer_engine.backends.host.audio_tower import ClipReader
from spaninfer_engine.backends.host.patch_tower import PatchReader
from spaninfer_engine.backends.host.tower_step import plain_step
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.bound import EXTRA, ProgramKey, Programs, drained
from spaninfer_engine.ops.step import A, Step
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.spec.tower_nodes import AudioTower, PatchTower, Tower, num_extra
from spaninfer_engine.step.batch import Ints

MAX_ROWS = 16_384
"""Patches of a batch, or rows of clips, unless a single frame or clip has more: a picture of 1,792
pixels squared has as many. What lies between the operators of a 7B model's tower takes 90 kB per
patch in float32, 1.4 GiB then."""


T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Encoding(Generic[A]):
    """The rows of one image, video or clip.

    rows[num_tokens hidden] replace the embeddings of its tokens; deep[j], of the same shape, is
    added to the output of the decoder's layer j.
    """

    rows: A
    deep: tuple[A, ...] = ()


class Piece(Protocol):
    """An indivisible unit of a tower's work: a frame, or a clip."""

    @property
    def num_rows(self) -> int:
        """Rows that attention sees."""
        ...


Work: TypeAlias = Generator[int, None, T]
"""Work that says behind every kernel how many are left."""
Run = Callable[[ProgramKey, Step[A]], Work[A]]


class Reader(Protocol, Generic[A]):
    """The reader of one kind of tower's inputs."""

    def pieces(self, item: TowerInput) -> Sequence[Piece]:
        """Return the pieces of an input in order; ValueError unless the tower reads it."""
        ...

    def compute(self, pieces: Sequence[Piece], run: Run[A]) -> Work[tuple[A, Sequence[Ints]]]:
        """Return rows, and which of them are those of each piece."""
        ...


class HostTower(Generic[A]):
    """A tower whose programs are bound when they are first needed.

    Batches have at most `max_rows`, unless a single frame or clip has more.
    """

    def __init__(
        self,
        bind: Callable[[], Programs[A]],
        ops: Ops[A],
        tower: Tower,
        *,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.tower, self.ops, self.max_rows, self._bind = tower, ops, max_rows, bind
        self._reader = _reader(tower, ops)
        self._programs: Programs[A] | None = None

    def load(self) -> None:
        """Read and pack the weights, if that has not been done; ConfigError if they do not fit."""
        if self._programs is None:
            self._programs = self._bind()

    def close(self) -> None:
        """Give the weights back; idempotent. Media that come later raise AssertionError."""
        self._programs, self._bind = None, _closed

    @property
    def _num_kernels(self) -> int:
        """Kernels of a batch."""
        programs = self._programs
        assert programs is not None
        return sum(len(programs[key].kernels) for key in programs.keys)

    def encode(self, inputs: Sequence[TowerInput]) -> list[Encoding[A]]:
        """Return the rows of every input, in order, computed in batches.

        ValueError for features that are not those of this tower; NoMemory where a batch has none;
        with the first media, what `load` raises.
        """
        return drained(self.kernel_by_kernel(inputs))

    def kernel_by_kernel(self, inputs: Sequence[TowerInput]) -> Work[list[Encoding[A]]]:
        """Do the same with a pause behind every kernel, telling how many are left."""
        self.load()
        each = [self._reader.pieces(item) for item in inputs]
        owners = [owner for owner, pieces in enumerate(each) for _ in pieces]
        found: list[list[A]] = [[] for _ in inputs]
        done = iter(owners)
        pieces = [piece for parts in each for piece in parts]
        parts = list(batches(pieces, self.max_rows))
        for left, batch in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            work = self._reader.compute(batch, self._run)
            made, whose = yield from _before(left * self._num_kernels, work)
            for rows in whose:
                found[next(done)].append(self.ops.take_rows(made, rows))
        extra = yield from self._extra()
        return [
            self._encoding(item, parts, extra) for item, parts in zip(inputs, found, strict=True)
        ]

    def _extra(self) -> Work[Sequence[A]]:
        """Return the rows that the model brings itself, if it does."""
        count = num_extra(self.tower)
        if not count:
            return []
        places = np.arange(count, dtype=np.int32)
        step = plain_step(self.ops, places, np.array([count], np.int32))
        rows = yield from self._run(EXTRA, step)
        return [rows]

    def _encoding(self, item: TowerInput, parts: Sequence[A], extra: Sequence[A]) -> Encoding[A]:
        tower, ops = self.tower, self.ops
        sizes = (tower.width,) * (1 + len(tower.deepstack))
        if item.mixture is not None:
            whole = ops.mix_rows(ops.stack_rows([*parts, *extra]), *item.mixture)
        elif extra and isinstance(tower, AudioTower):
            first, last = (ops.take_rows(extra[0], np.array([end], np.int32)) for end in (0, 1))
            whole = ops.stack_rows([first, *parts, last])
        else:
            whole = parts[0] if len(parts) == 1 else ops.stack_rows(parts)
        rows, *deep = ops.split(whole, sizes=sizes)
        return Encoding(rows, tuple(deep))

    def _run(self, key: ProgramKey, step: Step[A]) -> Work[A]:
        assert self._programs is not None
        try:
            self.ops.prepare(step)
            return (yield from self._programs[key].kernel_by_kernel(step))
        except self.ops.memory_errors:
            pass
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        raise NoMemory(step.num_tokens, self.ops.available_bytes())


def _closed() -> Programs[Any]:
    raise AssertionError("the tower is closed")


def _before(others: int, work: Work[T]) -> Work[T]:
    """Do work in front of that many other kernels."""
    while True:
        try:
            yield next(work) + others
        except StopIteration as done:
            result: T = done.value
            return result


def _reader(tower: Tower, ops: Ops[A]) -> Reader[A]:
    match tower:
        case PatchTower():
            return PatchReader(tower, ops)
        case AudioTower():
            return ClipReader(tower, ops)


def batches(pieces: Sequence[Piece], max_rows: int) -> Iterator[Sequence[Piece]]:
    """Yield pieces in order, as many at once as have `max_rows`, at least one."""
    start = rows = 0
    for end, piece in enumerate(pieces):
        if end > start and rows + piece.num_rows > max_rows:
            yield pieces[start:end]
            start, rows = end, 0
        rows += piece.num_rows
    if start < len(pieces):
        yield pieces[start:]
