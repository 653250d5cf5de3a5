"""The GPU sampler: samples tokens, keeps them for the next step, and sends them to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import sample, token_logprobs
from torch import Tensor

from spaninfer_engine.backends.cuda.graphs.memory import StepMemory
from spaninfer_engine.backends.cuda.graphs.sampling import SamplingLaunches
from spaninfer_engine.backends.cuda.kernels.kernels import ELEMENTS
from spaninfer_engine.backends.cuda.sampling.buffers import SamplingBuffers
from spaninfer_engine.request.request import MAX_LOGPROBS
from spaninfer_engine.step.device import Logprobs, Samples

Words = NDArray[np.int32]
Floats = NDArray[np.float32]
Places = NDArray[np.intp]

_ELEMENTS = {torch.float32: np.float32, **ELEMENTS}
_KEPT = 1024  # prepared launches
_LOGPROB_WORDS = 2 + 2 * MAX_LOGPROBS  # of a row: see `_parts_of`

# In all they may be 32 of prompts and one of every request: 260 MB of the device on their way, if
# 152,000 tokens are known. So many take 15 MB, which the largest step allows for.
LOGITS_AT_ONCE = 16
"""Rows of logits that are sent to the host at a time."""


class GpuSampler:
    """Samples the tokens of a step by the parameters of its sequences."""

    def __init__(self, gpu: Gpu, memory: StepMemory) -> None:
        self._gpu, self._memory = gpu, memory
        sizes = memory.sizes
        self.params = SamplingBuffers(memory)
        words = sizes.padded_rows * (2 + _LOGPROB_WORDS)
        self._out = torch.zeros(words, dtype=torch.int32, device=memory.device)
        self._arriving = [_Arriving(words), _Arriving(words)]
        self._prepared = lru_cache(_KEPT)(self._prepare)
        self._prepared_reports = lru_cache(_KEPT)(self._prepare_report)

    def sample_tokens(self, logits: Tensor, launches: SamplingLaunches, stream: int) -> None:
        """Sample a token per row of logits[W V], with log-probabilities where rows ask for them."""
        memory = self._memory
        prepared = self._prepare_for(logits)
        sizes = (
            prepared.workspace_bytes if launches.penalties else 0,
            prepared.kept_bytes if launches.typical else 0,
        )
        workspace, kept = (
            torch.empty(size, dtype=torch.uint8, device=logits.device) if size else None
            for size in sizes
        )
        batch = self.batch(logits)._replace(workspace=workspace, kept=kept)
        prepared.launch(
            batch,
            out=self._out_of(logits),
            tokens=memory.tokens.data_ptr(),
            lists=self.params.lists,
            busy=sample.Busy(launches.typical, launches.logprobs),
            stream=stream,
        )
        if launches.logprobs:
            self.compute_logprobs(logits, batch, launches, stream)

    def compute_logprobs(
        self, logits: Tensor, batch: sample.SampleBatch, launches: SamplingLaunches, stream: int
    ) -> None:
        """Compute log-probabilities of the tokens that were sampled from logits[W V].

        Those of logits that penalties have changed need the batch that sampled them.
        """
        count = len(logits)
        self._prepare_for(logits).compute_logprobs(
            batch,
            sample.Logprobs(*_parts_of(self._out[2 * count :], count, MAX_LOGPROBS)),
            sampled=self._out_of(logits),
            busy=launches.logprobs,
            stream=stream,
        )

    def _out_of(self, logits: Tensor) -> tuple[int, int]:
        """Return the addresses of tokens and of their status."""
        return self._out.data_ptr(), self._out.data_ptr() + 4 * len(logits)

    def report(
        self, logits: Tensor, rows: Words, token_ids: Words, count: int, stream: int
    ) -> Reported:
        """Return log-probabilities of token_ids[N] under `rows`[N] of logits[W V], on their way,
        and those of the `count` most likely tokens.
        """
        entries = torch.from_numpy(np.stack([rows, token_ids]).astype(np.int32)).pin_memory()
        entries = entries.to(logits.device, non_blocking=True)
        num_words = len(rows) * (2 + 2 * count)
        words = torch.empty(num_words, dtype=torch.int32, device=logits.device)
        prepared = self._prepared_reports(
            len(rows), count, logits.shape[1], logits.stride(0), logits.dtype
        )
        out = token_logprobs.Logprobs(*_parts_of(words, len(rows), count))
        prepared.launch(logits, token_logprobs.Entries(*entries), out=out, stream=stream)
        pinned = torch.empty_like(words, device="cpu", pin_memory=True)
        return Reported(pinned.copy_(words, non_blocking=True), count)

    def fetch(self, count: int, stream: int, *, has_logprobs: bool) -> Sampled:
        """Send the newest `count` tokens to the host, with log-probabilities, on torch's current
        stream, whose handle is `stream`.
        """
        self._arriving.reverse()
        words = count * (2 + has_logprobs * _LOGPROB_WORDS)
        arriving = self._arriving[0]
        self._memory.send(arriving.address, self._out, words, stream)
        return arriving.sent(words, count)

    def batch(self, logits: Tensor) -> sample.SampleBatch:
        """Return the rows of logits[W V] with the newest step's parameters and positions."""
        memory = self._memory
        return sample.SampleBatch(
            logits,
            parameters=self.params.records,
            slots=memory.sampled_rows,
            positions=memory.sampled_positions,
            mask=self.params.masks,
        )

    def _prepare_for(self, logits: Tensor) -> sample.PreparedSample:
        return self._prepared(tuple(logits.shape), logits.stride(0), logits.dtype)

    def _prepare(
        self, shape: tuple[int, int], row_stride: int, dtype: torch.dtype
    ) -> sample.PreparedSample:
        rows, length = shape
        return sample.prepare(
            rows=rows,
            length=length,
            dtype=_ELEMENTS[dtype],
            gpu=self._gpu,
            token_stride=self._memory.tokens.stride(0),
            row_stride=row_stride,
            top=MAX_LOGPROBS,
        )

    def _prepare_report(
        self, count: int, num_top: int, length: int, row_stride: int, dtype: torch.dtype
    ) -> token_logprobs.PreparedTokenLogprobs:
        return token_logprobs.prepare(
            count=count,
            length=length,
            dtype=_ELEMENTS[dtype],
            gpu=self._gpu,
            num_top=num_top,
            row_stride=row_stride,
        )


class _Arriving:
    """Pinned memory that results of one step in two arrive in, and the event that says so."""

    def __init__(self, words: int) -> None:
        self._pinned = torch.empty(words, dtype=torch.int32, pin_memory=True)
        self._words = self._pinned.numpy()
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def address(self) -> int:
        """The address of the memory."""
        return self._pinned.data_ptr()

    def sent(self, words: int, count: int) -> Sampled:
        """Return that many words, about `count` tokens, which torch's current stream sends here."""
        self._arrived.record()
        return Sampled(self._words[:words], count, self._arrived)


class Sampled:
    """Tokens on their way to the host, with log-probabilities behind them or without."""

    def __init__(self, words: Words, count: int, arrived: torch.cuda.Event) -> None:
        self._words, self._count, self._arrived = words, count, arrived

    def wait(self) -> None:
        """Wait until they are there."""
        self._arrived.synchronize()

    @property
    def is_there(self) -> bool:
        """True if `wait` would return at once."""
        return bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def samples(self) -> Samples:
        """Return the tokens, with a status each."""
        count = self._count
        return Samples(self._words[:count], self._words[count : 2 * count])

    def logprobs(self, rows: tuple[int, ...], count: int) -> Callable[[], Logprobs]:
        """Copy those of some rows, with `count` most likely tokens, before others arrive here;
        return what makes arrays of the copy.
        """
        return partial(_logprobs_of_rows, self._words.take(_places(rows, self._count, count)))


@dataclass(frozen=True, slots=True)
class Reported:
    """Log-probabilities of prompts on their way to the host."""

    words: Tensor
    num_top: int

    def logprobs(self) -> Logprobs:
        """Return them, once they have arrived, in memory that is not pinned."""
        return logprobs_of(self.words.numpy().copy(), self.num_top)


def _parts_of(words: Tensor, count: int, num_top: int) -> tuple[int, int, int, int]:
    """Return where the parts of what `logprobs_of` reads lie, in the order of `Logprobs`."""
    chosen = words.data_ptr()
    ranks, top_ids = chosen + 4 * count, chosen + 8 * count
    return chosen, ranks, top_ids, top_ids + 4 * count * num_top


def logprobs_of(words: Words, num_top: int) -> Logprobs:
    """Return the words that `_parts_of` divides as what they mean."""
    count = len(words) // (2 + 2 * num_top)
    chosen, ranks, top_ids, top = np.split(words, [count, 2 * count, count * (2 + num_top)])
    shape = (count, num_top)
    return Logprobs(
        chosen.view(np.float32), ranks, top_ids.reshape(shape), top.view(np.float32).reshape(shape)
    )


@lru_cache(8)
def _places(rows: tuple[int, ...], num_rows: int, count: int) -> Places:
    """Return where the words of `rows` lie among those of all rows that a step sends to the host,
    [R 2 + 2 n]. Mostly they are those of the step before.
    """
    first, step = _columns(num_rows, count)
    return np.array(rows)[:, None] * step + first


@lru_cache(_KEPT)
def _columns(num_rows: int, count: int) -> tuple[Places, Places]:
    """Return where those of the first row lie, and how far from it those of the next."""
    chosen = 2 * num_rows  # behind tokens and status
    top_ids = np.arange(count) + chosen + 2 * num_rows
    top = top_ids + num_rows * MAX_LOGPROBS
    step = np.repeat([1, MAX_LOGPROBS], [2, 2 * count])
    return np.concatenate([[chosen, chosen + num_rows], top_ids, top]), step


def _logprobs_of_rows(words: Words) -> Logprobs:
    """Return words from `_places` as what they mean."""
    values, count = words.view(np.float32), words.shape[1] // 2 - 1
    return Logprobs(values[:, 0], words[:, 1], words[:, 2 : 2 + count], values[:, 2 + count :])


def fetch_logits(logits: Tensor, rows: Words) -> Tensor | None:
    """Send rows of logits[W V] to the host, in float32; return where they arrive, [R V]."""
    if not len(rows):
        return None
    index = torch.from_numpy(rows).pin_memory().to(logits.device, non_blocking=True)
    arrived = torch.empty((len(rows), logits.shape[1]), dtype=torch.float32, pin_memory=True)
    for first in range(0, len(rows), LOGITS_AT_ONCE):
        part = slice(first, first + LOGITS_AT_ONCE)
        arrived[part].copy_(logits[index[part]].float(), non_blocking=True)
    return arrived
