"""The GPU sampler: samples tokens, keeps them for the next step, and sends them to the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import sample
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels import ELEMENTS
from spaninfer_engine.backends.cuda.memory import StepMemory
from spaninfer_engine.backends.cuda.sampling_buffers import SamplingBuffers
from spaninfer_engine.request import MAX_LOGPROBS
from spaninfer_engine.step.device import Logprobs, Samples

Words = NDArray[np.int32]
Floats = NDArray[np.float32]

_ELEMENTS = {torch.float32: np.float32, **ELEMENTS}
_KEPT = 1024  # prepared launches

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
        self._out = torch.zeros(2 * sizes.padded_rows, dtype=torch.int32, device=memory.device)
        self._pinned = [torch.empty_like(self._out, device="cpu").pin_memory() for _ in range(2)]
        self._report_records = _report_records().to(memory.device)
        words = sizes.padded_rows * (2 + 2 * MAX_LOGPROBS)
        self._words = torch.zeros(words, dtype=torch.int32, device=memory.device)
        self._pinned_words = [
            torch.empty_like(self._words, device="cpu").pin_memory() for _ in "ab"
        ]
        self._prepared = lru_cache(_KEPT)(self._prepare)

    def sample_tokens(
        self, logits: Tensor, stream: int, *, has_penalties: bool, num_typical: int = 0
    ) -> sample.SampleBatch:
        """Sample a token per row of logits[W V]; return what `logprobs` reads.

        `has_penalties`: parameters may change logits; `num_typical` rows have a typical_p.
        """
        memory, count = self._memory, len(logits)
        prepared = self._prepare_for(logits)
        sizes = (
            prepared.workspace_bytes if has_penalties else 0,
            prepared.kept_bytes if num_typical else 0,
        )
        workspace, kept = (
            torch.empty(size, dtype=torch.uint8, device=logits.device) if size else None
            for size in sizes
        )
        batch = self.batch(logits)._replace(workspace=workspace, kept=kept)
        prepared.launch(
            batch,
            out=(self._out.data_ptr(), self._out[count:].data_ptr()),
            tokens=memory.tokens.data_ptr(),
            lists=self.params.lists,
            busy=sample.Busy(num_typical, logprobs=0),
            stream=stream,
        )
        return batch

    def logprobs(
        self, logits: Tensor, batch: sample.SampleBatch, num_rows: int, stream: int
    ) -> Tensor:
        """Return log-probabilities of tokens that were sampled from logits[W V], on their way.

        `num_rows` ask for them. By row: log-probability, rank, ids of the most likely, their
        log-probabilities. Those of processed logits need the batch that `sample_tokens` returned.
        """
        count = len(logits)
        words = self._words[: count * (2 + 2 * MAX_LOGPROBS)]
        self._prepare_for(logits).compute_logprobs(
            batch,
            _parts_of(words, count, MAX_LOGPROBS),
            sampled=(self._out.data_ptr(), self._out[count:].data_ptr()),
            busy=num_rows,
            stream=stream,
        )
        self._pinned_words.reverse()
        return self._pinned_words[0][: len(words)].copy_(words, non_blocking=True)

    def report(
        self, logits: Tensor, rows: Words, token_ids: Words, count: int, stream: int
    ) -> Reported:
        """Return log-probabilities of token_ids[N] under `rows`[N] of logits[W V], on their way,
        and those of the `count` most likely tokens.
        """
        columns = np.zeros((3, len(logits)), np.int32)
        slots, sampled, _ = columns
        slots[:] = -1
        slots[rows], sampled[rows] = count, token_ids
        on_device = torch.from_numpy(columns).pin_memory().to(logits.device, non_blocking=True)
        words = torch.empty(len(logits) * (2 + 2 * count), dtype=torch.int32, device=logits.device)
        self._prepare_for(logits, count).compute_logprobs(
            sample.SampleBatch(
                logits, self._report_records, slots=on_device[0], positions=on_device[2]
            ),
            _parts_of(words, len(logits), count),
            sampled=(on_device[1], on_device[2]),
            busy=len(rows),
            stream=stream,
        )
        pinned = torch.empty_like(words, device="cpu", pin_memory=True)
        return Reported(pinned.copy_(words, non_blocking=True), rows, count)

    def fetch(self, count: int) -> Tokens:
        """Send the newest step's `count` tokens to the host."""
        self._pinned.reverse()
        pinned = self._pinned[0][: 2 * count]
        pinned.copy_(self._out[: 2 * count], non_blocking=True)
        return Tokens(pinned.numpy(), torch.cuda.current_stream().record_event())

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

    def _prepare_for(self, logits: Tensor, top: int = MAX_LOGPROBS) -> sample.PreparedSample:
        return self._prepared(tuple(logits.shape), logits.stride(0), logits.dtype, top)

    def _prepare(
        self, shape: tuple[int, int], row_stride: int, dtype: torch.dtype, top: int
    ) -> sample.PreparedSample:
        rows, length = shape
        return sample.prepare(
            rows=rows,
            length=length,
            dtype=_ELEMENTS[dtype],
            gpu=self._gpu,
            token_stride=self._memory.tokens.stride(0),
            row_stride=row_stride,
            top=top,
        )


class Tokens:
    """Tokens on their way to the host."""

    def __init__(self, pinned: Words, arrived: torch.cuda.Event) -> None:
        self._pinned, self._arrived = pinned, arrived

    def wait(self) -> None:
        """Wait until they are there."""
        self._arrived.synchronize()

    def samples(self) -> Samples:
        """Return them, with a status each."""
        token_ids, status = self._pinned.reshape(2, -1)
        return Samples(token_ids, status)


@dataclass(frozen=True, slots=True)
class Reported:
    """Log-probabilities of prompts on their way to the host: of some rows of logits."""

    words: Tensor
    rows: Words
    num_top: int

    def logprobs(self) -> Logprobs:
        """Return those of the rows, once they have arrived."""
        words, rows = logprobs_of(self.words.numpy(), self.num_top), self.rows
        return Logprobs(words.chosen[rows], words.ranks[rows], words.top_ids[rows], words.top[rows])


def _report_records() -> Tensor:
    """Return the records of prompts: number n asks for the model's n most likely tokens."""
    records = sample.defaults(MAX_LOGPROBS + 1)
    records["logprobs"] = np.arange(MAX_LOGPROBS + 1)
    return torch.from_numpy(records.view(np.int32))


def _parts_of(words: Tensor, count: int, num_top: int) -> sample.Logprobs:
    """Return where the parts of what `logprobs_of` reads lie."""
    chosen = words.data_ptr()
    ranks, top_ids = chosen + 4 * count, chosen + 8 * count
    return sample.Logprobs(chosen, ranks, top_ids, top_ids + 4 * count * num_top)


def logprobs_of(words: Words, num_top: int = MAX_LOGPROBS) -> Logprobs:
    """Return the words of `GpuSampler.logprobs` as what they mean."""
    count = len(words) // (2 + 2 * num_top)
    chosen, ranks, top_ids, top = np.split(words, [count, 2 * count, count * (2 + num_top)])
    shape = (count, num_top)
    return Logprobs(
        chosen.view(np.float32), ranks, top_ids.reshape(shape), top.view(np.float32).reshape(shape)
    )


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
