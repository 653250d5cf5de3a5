"""Tokens drawn from rows of logits, on the threads of a team: what callers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.call import MAX_SIZE, Call, Script, word
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.kernel import Kernel
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.sample_kernel import Candidates, Sampling, penalize, sample
from spaninfer_kernels_cpu.team import Team, shared_team

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_ALL = 1 << 40  # rows that the tasks share: those of any step


def sampling_kernel() -> Kernel:
    """Return the kernel that every `Sampler` calls."""
    return _sample


def _no_ids() -> Ints:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How the token of a row is drawn; spaninfer_op_reference.RowSampling says what it means.

    Ids are int32 and contiguous.
    """

    seed: int
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_ids: Ints = field(default_factory=_no_ids)  # what penalties look at
    output_ids: Ints = field(default_factory=_no_ids)

    def __post_init__(self) -> None:
        """Raise unless ids lie in memory as the kernel reads them."""
        for name, ids in (("prompt_ids", self.prompt_ids), ("output_ids", self.output_ids)):
            if ids.dtype != np.int32:
                raise DTypeError(f"{name} hold {ids.dtype}; the kernel takes int32")
            if ids.ndim != 1 or not ids.flags.c_contiguous:
                raise ShapeError(
                    f"{name}: expected one contiguous axis, got shape {ids.shape} with strides "
                    f"{ids.strides}"
                )

    @property
    def has_penalties(self) -> bool:
        """Do the ids matter?"""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)

    def check(self, vocab: int) -> None:
        """Raise KernelError unless numbers are in range, and ids that are read below `vocab`."""
        for name, number in (("seed", self.seed), ("position", self.position)):
            demand_size(name, number, 0, 2**64 - 1)
        demand_size("top_k", self.top_k, 0, MAX_SIZE)
        for name, ids in (("prompt_ids", self.prompt_ids), ("output_ids", self.output_ids)):
            if self.has_penalties and len(ids):
                demand_size(f"the least of {name}", int(ids.min()), 0, vocab - 1)
                demand_size(f"the largest of {name}", int(ids.max()), 0, vocab - 1)

    @property
    def record(self) -> tuple[Any, ...]:
        """It as a _RECORD."""
        numbers = self.temperature, self.top_p, self.min_p
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        places = (
            *(self.prompt_ids.ctypes.data, len(self.prompt_ids)),
            *(self.output_ids.ctypes.data, len(self.output_ids)),
        )
        if not self.has_penalties:
            places = 0, 0, 0, 0
        return self.seed, self.position, (self.top_k, *places), (*numbers, *penalties)


_RECORD = np.dtype([("seed", "u8"), ("position", "u8"), ("whole", "i8", 5), ("real", "f4", 6)])


class Sampler:
    """Draws tokens from a vocabulary of `vocab`; one caller at a time.

    Its kernel is made ready by the first call, unless that was done before.

    Every thread has memory of its own for candidates, 28 bytes per token as far as it is used.
    """

    def __init__(self, vocab: int, team: Team | None = None) -> None:
        demand_size("vocab", vocab, 1, 2**31 - 1)
        self._team = team or shared_team()
        self._vocab = vocab
        self._room = np.zeros((self._team.num_threads, _room_numbers(vocab)), np.float32)

    def __call__(self, logits: Floats, draws: Sequence[Draw]) -> Ints:
        """Return the tokens[R] drawn from logits[R V]; -1 where none can be: NaN, or all masked.

        Raises KernelError for logits of another shape, and for ids beyond the vocabulary.
        """
        if logits.dtype != np.float32:
            raise DTypeError(f"logits hold {logits.dtype}; the kernel takes float32")
        if logits.shape != (len(draws), self._vocab) or logits.strides[1] != logits.itemsize:
            raise ShapeError(
                f"logits: expected shape {(len(draws), self._vocab)} with contiguous rows, got "
                f"{logits.shape} with strides {logits.strides}"
            )
        for draw in draws:
            draw.check(self._vocab)
        records = np.array([draw.record for draw in draws], _RECORD)
        tokens = np.empty(len(draws), np.int32)
        tasks = len(self._room)
        words = (
            *(logits.ctypes.data, logits.strides[0], self._vocab),
            *(records.ctypes.data, tokens.ctypes.data),
            *(self._room.ctypes.data, self._room.strides[0], tasks),
        )
        self._team.run(Script([Call(_sample, words, tasks, _ALL)]), [len(draws)])
        return tokens


def _room_numbers(vocab: int) -> int:
    """Return how many numbers of 32 bits a task keeps: candidates, a copy of a row, counts."""
    return 6 * vocab + 4 * (-(-vocab // 4))


# ---- inside the kernel ---------------------------------------------------------------------------


def _sample(words: int, rows: int, task: int) -> None:
    """Draw for every row whose number leaves `task` when divided by the number of tasks."""
    vocab, tasks = word(words, 2), word(words, 7)
    room = word(words, 5) + task * word(words, 6)
    each = 4 * vocab
    candidates = Candidates(
        floats_at(room, vocab),
        numbers_at(room + each, vocab, np.int32),
        floats_at(room + 2 * each, vocab),
        numbers_at(room + 3 * each, vocab, np.int32),
        numbers_at(room + 6 * each, 4 * ((vocab + 3) // 4), np.uint32),
    )
    tokens = numbers_at(word(words, 4), rows, np.int32)
    row = task
    while row < rows:
        record = word(words, 3) + row * 80
        seeds = numbers_at(record, 2, np.uint64)
        whole, real = numbers_at(record + 16, 5, np.int64), floats_at(record + 56, 6)
        logits = floats_at(word(words, 0) + row * word(words, 1), vocab)
        if whole[1] != 0:
            changed = floats_at(room + 4 * each, vocab)
            for i in range(vocab):
                changed[i] = logits[i]
            prompt = numbers_at(whole[1], whole[2], np.int32)
            output = numbers_at(whole[3], whole[4], np.int32)
            counts = numbers_at(room + 5 * each, vocab, np.int32)
            penalize(changed, prompt, output, real[3], real[4], real[5], counts)
            logits = changed
        sampling = Sampling(real[0], whole[0], real[1], real[2], seeds[0], seeds[1])
        tokens[row] = sample(logits, sampling, candidates)
        row += tasks
