"""Log-probabilities of tokens from rows of logits, on the threads of a pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.device_function import device_function, device_function_with
from spaninfer_kernels_cpu.codegen.elements import larger
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.codegen.kernel import Kernel
from spaninfer_kernels_cpu.errors import DTypeError, ShapeError, demand_size
from spaninfer_kernels_cpu.runtime.call import ALL_TOKENS, Call, Matrix, Script, row_at
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool, shared_thread_pool
from spaninfer_kernels_cpu.sampling.sampler import BRIEF_NUMBERS
from spaninfer_kernels_cpu.sampling.top_k_kernel import select_largest

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_BLOCK = 4096  # float32 sums of this many exponentials, added up in float64


def logprobs_kernel() -> Kernel:
    """Return the kernel that every `Logprobs` calls."""
    return _report


class TokenLogprobs(NamedTuple):
    """The log-probabilities of R tokens, their ranks, and the n most likely in place of each."""

    chosen: Floats  # [R]
    ranks: Ints  # [R] 1 is the most likely; of equal ones the smaller id is first
    top_ids: Ints  # [R n] most likely first
    top: Floats  # [R n]


@dataclass(frozen=True, slots=True)
class _ReportArguments(Arguments):
    """A task has a row of scratch[tasks, 2 V], and every `tasks`-th row of the logits."""

    logits: Matrix
    vocab: int
    numbers: int  # 0, 1, 2, … [V]
    ids: int
    temperatures: int
    num_top: int
    chosen: int
    ranks: int
    top_ids: int
    top: int
    scratch: Matrix
    tasks: int


class Logprobs:
    """Log-probabilities of tokens, as spaninfer_op_reference.top_logprobs defines them.

    `vocab` is the size of the vocabulary; one caller at a time. The first call compiles or loads
    the kernel, unless that was done before.
    """

    def __init__(self, vocab: int, thread_pool: ThreadPool | None = None) -> None:
        demand_size("vocab", vocab, 1, 2**31 - 1)
        self._thread_pool = thread_pool or shared_thread_pool()
        self._numbers = np.arange(vocab, dtype=np.int32)
        self._scratch = np.zeros((self._thread_pool.num_threads, 2 * vocab), np.float32)

    def __call__(
        self, logits: Floats, ids: Ints, num_top: int, temperatures: Floats | None = None
    ) -> TokenLogprobs:
        """Return the log-probabilities of ids[R] under logits[R V], with the `num_top` most likely;
        under logits over temperatures[R] where these are given.

        A row that holds NaN has NaN, and the first ids. Raises KernelError for other shapes, and
        for ids beyond the vocabulary.
        """
        vocab = len(self._numbers)
        temperatures = np.ones(len(ids), np.float32) if temperatures is None else temperatures
        _check(logits, ids, temperatures, vocab)
        demand_size("num_top", num_top, 0, vocab)
        ids = np.ascontiguousarray(ids)
        found = TokenLogprobs(
            np.empty(len(ids), np.float32),
            np.empty(len(ids), np.int32),
            np.empty((len(ids), num_top), np.int32),
            np.empty((len(ids), num_top), np.float32),
        )
        tasks = len(self._scratch)
        arguments = _ReportArguments(
            logits=Matrix.of(logits),
            vocab=vocab,
            numbers=self._numbers.ctypes.data,
            ids=ids.ctypes.data,
            temperatures=temperatures.ctypes.data,
            num_top=num_top,
            chosen=found.chosen.ctypes.data,
            ranks=found.ranks.ctypes.data,
            top_ids=found.top_ids.ctypes.data,
            top=found.top.ctypes.data,
            scratch=Matrix.of(self._scratch),
            tasks=tasks,
        )
        script = Script([Call(_report, arguments, tasks, ALL_TOKENS)])
        wakes = len(ids) * vocab > BRIEF_NUMBERS
        self._thread_pool.run(script, [len(ids)], wakes=wakes)
        return found


def _check(logits: Floats, ids: Ints, temperatures: Floats, vocab: int) -> None:
    """Raise unless the arrays have the types and shapes that `Logprobs` describes."""
    if logits.dtype != np.float32 or ids.dtype != np.int32:
        raise DTypeError(
            f"logits hold {logits.dtype}, ids {ids.dtype}; the kernel takes float32 and int32"
        )
    if logits.shape != (len(ids), vocab) or logits.strides[1] != logits.itemsize:
        raise ShapeError(
            f"logits: expected shape {(len(ids), vocab)} with contiguous rows, got "
            f"{logits.shape} with strides {logits.strides}"
        )
    if len(ids):
        demand_size("the least of ids", int(ids.min()), 0, vocab - 1)
        demand_size("the largest of ids", int(ids.max()), 0, vocab - 1)
    if temperatures.dtype != np.float32:
        raise DTypeError(f"temperatures hold {temperatures.dtype}; the kernel takes float32")
    if temperatures.shape != ids.shape or not temperatures.flags.c_contiguous:
        raise ShapeError(
            f"temperatures: expected {len(ids)} of one contiguous axis, got shape "
            f"{temperatures.shape} with strides {temperatures.strides}"
        )


# ---- the kernel ----------------------------------------------------------------------------------


def _report(arguments: _ReportArguments, rows: int, task: int) -> None:
    """Report on every row whose number leaves `task` when divided by the number of tasks."""
    vocab, num_top = arguments.vocab, arguments.num_top
    room = row_at(arguments.scratch, task)
    scratch, tempered = floats_at(room, vocab), floats_at(room + 4 * vocab, vocab)
    numbers = numbers_at(arguments.numbers, vocab, np.int32)
    ids = numbers_at(arguments.ids, rows, np.int32)
    temperatures = floats_at(arguments.temperatures, rows)
    chosen = floats_at(arguments.chosen, rows)
    ranks = numbers_at(arguments.ranks, rows, np.int32)
    row = task
    while row < rows:
        logits = floats_at(row_at(arguments.logits, row), vocab)
        top_ids = numbers_at(arguments.top_ids + 4 * row * num_top, num_top, np.int32)
        top = floats_at(arguments.top + 4 * row * num_top, num_top)
        if temperatures[row] != 1:
            _temper(logits, temperatures[row], tempered)
            logits = tempered
        total = _log_sum_exp(logits, scratch)
        token = ids[row]
        chosen[row] = logits[token] - total
        ranks[row], found = 1, 0
        if total == total:
            ranks[row] += _num_ahead(logits, token)
            found = select_largest(logits, numbers, vocab, top, top_ids, num_top)
        for i in range(num_top):
            if i >= found:
                top[i], top_ids[i] = total, numbers[i]
            else:
                top[i] -= total
        row += arguments.tasks


@device_function
def _log_sum_exp(logits: Floats, scratch: Floats) -> np.float32:
    """Return log(sum(exp(logits))), NaN where one is; scratch[V] is overwritten."""
    most, bad = _largest(logits)
    if bad != 0:
        return np.float32(np.nan)
    for i in range(len(logits)):
        scratch[i] = exp(logits[i] - most)
    total = 0.0
    for first in range(0, len(logits), _BLOCK):
        total += np.float64(_sum(scratch, first, min(first + _BLOCK, len(logits))))
    return np.float32(np.float64(most) + math.log(total))


@device_function
def _largest(logits: Floats) -> tuple[np.float32, int]:
    """Return the largest logit, and whether one is NaN."""
    most, bad = np.float32(-np.inf), 0
    for i in range(len(logits)):
        most = larger(most, logits[i])
        bad |= logits[i] != logits[i]
    return most, bad


@device_function
def _temper(logits: Floats, temperature: np.float32, tempered: Floats) -> None:
    """Write logits[V] over the temperature, shifted so that none overflows: the largest is 0."""
    most, _ = _largest(logits)
    for i in range(len(logits)):
        tempered[i] = (logits[i] - most) / temperature


@device_function_with(fastmath={"reassoc"})
def _sum(numbers: Floats, first: int, stop: int) -> np.float32:
    total = np.float32(0)
    for i in range(first, stop):
        total += numbers[i]
    return total


@device_function
def _num_ahead(logits: Floats, token: int) -> int:
    """Return how many tokens are more likely, or as likely and have a smaller id."""
    logit, ahead = logits[token], 0
    for i in range(len(logits)):
        ahead += logits[i] > logit
    for i in range(token):
        ahead += logits[i] == logit
    return ahead
