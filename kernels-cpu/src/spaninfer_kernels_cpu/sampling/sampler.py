"""Sampling: tokens from rows of logits, on the threads of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import (
    Arguments,
    Float32,
    packed,
    struct_at,
    struct_bytes,
)
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.kernel import Kernel
from spaninfer_kernels_cpu.errors import DTypeError, KernelError, ShapeError, demand_size
from spaninfer_kernels_cpu.runtime.call import (
    ALL_TOKENS,
    MAX_SIZE,
    Call,
    Matrix,
    Script,
    row_at,
)
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool, shared_thread_pool
from spaninfer_kernels_cpu.sampling.sample_kernel import (
    Candidates,
    Penalties,
    Sampling,
    penalize,
    sample,
)
from spaninfer_kernels_cpu.sampling.typical_kernel import NUM_SUMS

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

BRIEF_NUMBERS = 1 << 15  # logits that one thread looks at before a parked one has come


def sampling_kernel() -> Kernel:
    """Return the kernel that every `Sampler` calls."""
    return _sample


def _no_ids() -> Ints:
    return np.zeros(0, np.int32)


_ABOVE_0 = np.nextafter(0.0, 1.0)
_RANGES = (
    ("temperature", 0.0, np.inf, "0 (greedy) or more"),
    ("typical_p", _ABOVE_0, 1.0, "above 0, to 1"),
    ("top_p", _ABOVE_0, 1.0, "above 0, to 1"),
    ("min_p", 0.0, 1.0, "0 to 1"),
    ("repetition_penalty", _ABOVE_0, np.inf, "above 0"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRow:
    """Sampling parameters of a row, as spaninfer_op_reference.RowSampling defines them.

    Ids are int32 and contiguous.
    """

    seed: int
    position: int
    temperature: float = 1.0
    top_k: int = 0
    typical_p: float = 1.0
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
        """True if the ids of earlier tokens matter."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)

    def check(self, vocab: int) -> None:
        """Raise KernelError unless numbers are in range, and ids that are read below `vocab`."""
        for name, number in (("seed", self.seed), ("position", self.position)):
            demand_size(name, number, 0, 2**64 - 1)
        demand_size("top_k", self.top_k, 0, MAX_SIZE)
        for name, least, most, allowed in _RANGES:
            number = getattr(self, name)
            if not least <= number <= most:  # nor NaN
                raise KernelError(f"{name} is {number}; allowed is {allowed}")
        for name, ids in (("prompt_ids", self.prompt_ids), ("output_ids", self.output_ids)):
            if self.has_penalties and len(ids):
                demand_size(f"the least of {name}", int(ids.min()), 0, vocab - 1)
                demand_size(f"the largest of {name}", int(ids.max()), 0, vocab - 1)

    @property
    def record(self) -> _Record:
        """It as kernels read it."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        has_penalties, prompt, output = self.has_penalties, _UNREAD, _UNREAD
        if has_penalties:
            prompt, output = _ids_at(self.prompt_ids), _ids_at(self.output_ids)
        return _Record(
            seed=_signed(self.seed),
            position=_signed(self.position),
            temperature=self.temperature,
            top_k=self.top_k,
            typical_p=self.typical_p,
            top_p=self.top_p,
            min_p=self.min_p,
            has_penalties=has_penalties,
            penalties=_PenaltyArguments(*penalties),
            prompt=prompt,
            output=output,
        )


def _signed(number: int) -> int:
    """Return the int64 with the bits of a number below 2**64."""
    return (number + 2**63) % 2**64 - 2**63


@dataclass(frozen=True, slots=True)
class _Ids(Arguments):
    address: int
    count: int


def _ids_at(ids: NDArray[np.int32]) -> _Ids:
    """Return where ids lie; looking up an address takes 3 µs."""
    return _Ids(ids.ctypes.data, len(ids))


_UNREAD = _ids_at(_no_ids())
"""In place of ids that no penalty reads."""


@dataclass(frozen=True, slots=True)
class _PenaltyArguments(Arguments):
    repetition: Float32
    presence: Float32
    frequency: Float32


@dataclass(frozen=True, slots=True)
class _Record(Arguments):
    """Sampling parameters of a row as a record; `seed` and `position` are the bits of a uint64."""

    seed: int
    position: int
    temperature: Float32
    top_k: int
    typical_p: Float32
    top_p: Float32
    min_p: Float32
    has_penalties: bool
    penalties: _PenaltyArguments
    prompt: _Ids
    output: _Ids


_record_at = struct_at(_Record)
_RECORD_BYTES = struct_bytes(_Record)


@dataclass(frozen=True, slots=True)
class _SampleArguments(Arguments):
    """A task has a row of `scratch`, and every `tasks`-th row of the logits."""

    logits: Matrix
    vocab: int
    records: int
    tokens: int
    scratch: Matrix
    tasks: int


class Sampler:
    """Samples tokens from logits over `vocab` tokens; one caller at a time.

    The first call compiles or loads its kernel, unless that was done before. Every thread has
    memory of its own for candidates: 28 bytes per token, as far as they are used.
    """

    def __init__(self, vocab: int, thread_pool: ThreadPool | None = None) -> None:
        demand_size("vocab", vocab, 1, 2**31 - 1)
        self._thread_pool = thread_pool or shared_thread_pool()
        self._vocab = vocab
        self._scratch = np.zeros(
            (self._thread_pool.num_threads, _scratch_numbers(vocab)), np.float32
        )

    def __call__(self, logits: Floats, rows: Sequence[SamplingRow]) -> Ints:
        """Return tokens[R] (int32) sampled from logits[R V] (float32); -1 for NaN, or all masked.

        Raises ShapeError or DTypeError for other logits, KernelError for parameters out of range
        and ids beyond the vocabulary.
        """
        if logits.dtype != np.float32:
            raise DTypeError(f"logits hold {logits.dtype}; the kernel takes float32")
        is_contiguous = not rows or logits.strides[1] == logits.itemsize
        if logits.shape != (len(rows), self._vocab) or not is_contiguous:
            raise ShapeError(
                f"logits: expected shape {(len(rows), self._vocab)} with contiguous rows, got "
                f"{logits.shape} with strides {logits.strides}"
            )
        if not rows:
            return np.empty(0, np.int32)
        for row in rows:
            row.check(self._vocab)
        records = np.frombuffer(b"".join(packed(row.record) for row in rows), np.uint8)
        tokens = np.empty(len(rows), np.int32)
        tasks = len(self._scratch)
        arguments = _SampleArguments(
            logits=Matrix.of(logits),
            vocab=self._vocab,
            records=records.ctypes.data,
            tokens=tokens.ctypes.data,
            scratch=Matrix.of(self._scratch),
            tasks=tasks,
        )
        script = Script([Call(_sample, arguments, tasks, ALL_TOKENS)])
        wakes = len(rows) * self._vocab > BRIEF_NUMBERS
        self._thread_pool.run(script, [len(rows)], wakes=wakes)
        return tokens


def _scratch_numbers(vocab: int) -> int:
    """Return the numbers of 32 bits of a task: sums, candidates, a copy of a row, counts."""
    return 2 * NUM_SUMS + 6 * vocab + 4 * (-(-vocab // 4))


# ---- the kernel ----------------------------------------------------------------------------------


def _sample(arguments: _SampleArguments, rows: int, task: int) -> None:
    """Sample every row whose number leaves `task` when divided by the number of tasks."""
    vocab, tasks = arguments.vocab, arguments.tasks
    sums = row_at(arguments.scratch, task)
    room = sums + 8 * NUM_SUMS
    each = 4 * vocab
    candidates = Candidates(
        floats_at(room, vocab),
        numbers_at(room + each, vocab, np.int32),
        floats_at(room + 2 * each, vocab),
        numbers_at(room + 3 * each, vocab, np.int32),
        numbers_at(room + 6 * each, 4 * ((vocab + 3) // 4), np.uint32),
        numbers_at(sums, NUM_SUMS, np.float64),
    )
    tokens = numbers_at(arguments.tokens, rows, np.int32)
    row = task
    while row < rows:
        record = _record_at(arguments.records + row * _RECORD_BYTES)
        logits = floats_at(row_at(arguments.logits, row), vocab)
        if record.has_penalties:
            changed = floats_at(room + 4 * each, vocab)
            for i in range(vocab):
                changed[i] = logits[i]
            prompt = numbers_at(record.prompt.address, record.prompt.count, np.int32)
            output = numbers_at(record.output.address, record.output.count, np.int32)
            counts = numbers_at(room + 5 * each, vocab, np.int32)
            given = record.penalties
            penalties = Penalties(given.repetition, given.presence, given.frequency)
            penalize(changed, prompt, output, penalties, counts)
            logits = changed
        sampling = Sampling(
            record.temperature,
            record.top_k,
            record.typical_p,
            record.top_p,
            record.min_p,
            np.uint64(record.seed),
            np.uint64(record.position),
        )
        tokens[row] = sample(logits, sampling, candidates)
        row += tasks
