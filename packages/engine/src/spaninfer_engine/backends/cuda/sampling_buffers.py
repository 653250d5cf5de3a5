"""Sampling parameters of sequences in device memory that the sampling kernel reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import sample
from torch import Tensor

from spaninfer_engine.backends.cuda.memory import StepMemory
from spaninfer_engine.step.sampling import MAX_LISTED, DeviceSamplingParams

Words = NDArray[np.int32]


class SamplingBuffers:
    """A row per sequence: the sampler's record, and the lists that it points into.

    lists[N 2 L]: first ids of biases | where each bad word begins, and where the last one ends |
    their tokens | end ids; then biases. Places are counted from the array's beginning. `masks`
    [N ceil(V / 32)] have a bit for each allowed token of those that are masked, once there are any.
    """

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        count, words = memory.sizes.requests, sample.PARAMETERS.itemsize // 4
        self.records = torch.zeros((count, words), dtype=torch.int32, device=memory.device)
        self._lists = torch.zeros((count, 2 * MAX_LISTED), dtype=torch.int32, device=memory.device)
        self._masks: _TokenMasks | None = None
        lists = self._lists.data_ptr()
        self.lists = sample.TokenLists(
            bias_ids=lists,
            biases=lists + 4 * MAX_LISTED,
            word_bounds=lists,
            word_tokens=lists,
            end_ids=lists,
        )

    def write(self, row: int, params: DeviceSamplingParams) -> None:
        """Write a row's parameters before the next step."""
        record, lists = packed(params, first=row * 2 * MAX_LISTED)
        self._memory.write(self.records, row, 0, record.view(np.int32))
        if params.num_listed <= MAX_LISTED:  # else the host samples
            self._memory.write(self._lists, row, 0, lists)
            biases = np.array(params.biases, np.float32)
            self._memory.write(self._lists, row, MAX_LISTED, biases.view(np.int32))

    @property
    def masks(self) -> Tensor | None:
        """The token masks [N ceil(V / 32)], once there are any."""
        return None if self._masks is None else self._masks.of_rows

    def write_masks(
        self, rows: Sequence[int], allowed: Sequence[NDArray[np.uint8]], vocab: int
    ) -> None:
        """Write M masks [4 ceil(V / 32)] of M rows on torch's current stream.

        There are `vocab` logits, at most as many as a mask has bits.
        """
        if self._masks is None:
            count, device = self._memory.sizes.requests, self._memory.device
            self._masks = _TokenMasks(count, -(-vocab // 32), device)
        self._masks.write(rows, allowed)


class _TokenMasks:
    """A token mask for each of N rows, and memory that those of a step are sent through.

    What is sent: the rows [M] int64 | their masks [M words]. It is collected in pinned memory, in
    one of two buffers in turn: what was sent two steps ago has arrived. A mask that never changes,
    and that its row has, is not sent again: those of 64 rows took a step 0.4 ms.
    """

    def __init__(self, num_rows: int, words: int, device: torch.device) -> None:
        self.of_rows = torch.empty((num_rows, words), dtype=torch.int32, device=device)
        sent = num_rows * (2 + words)
        self._pinned = [torch.empty(sent, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._arrived = torch.empty(sent, dtype=torch.int32, device=device)
        self._kept: dict[int, NDArray[np.uint8]] = {}  # by row: the mask that it has

    def write(self, rows: Sequence[int], masks: Sequence[NDArray[np.uint8]]) -> None:
        """Send masks [words or more] of rows, where they do not have them."""
        kept = self._kept
        sent = {
            row: mask for row, mask in zip(rows, masks, strict=True) if kept.get(row) is not mask
        }
        if not sent:
            return
        count, words = len(sent), self.of_rows.shape[1]
        head, used = 2 * count, count * (2 + words)
        self._pinned.reverse()
        block = self._pinned[0].numpy()
        block[:head].view(np.int64)[:] = list(sent)
        for place, mask in zip(block[head:used].reshape(count, words), sent.values(), strict=True):
            place[:] = mask.view(np.int32)[:words]
        self._arrived[:used].copy_(self._pinned[0][:used], non_blocking=True)
        index = self._arrived[:head].view(torch.int64)
        self.of_rows.index_copy_(0, index, self._arrived[head:used].view(count, words))
        for row, mask in sent.items():
            kept.pop(row, None)
            if not mask.flags.writeable:
                kept[row] = mask


def packed(params: DeviceSamplingParams, *, first: int) -> tuple[NDArray[np.void], Words]:
    """Return parameters as the sampler's record, and the words of its lists, from `first` on."""
    record = sample.defaults(1)
    record["seed"] = params.seed
    record["temperature"] = params.temperature
    record["top_k"] = params.top_k
    record["typical_p"] = params.typical_p
    record["top_p"] = params.top_p
    record["min_p"] = params.min_p
    record["prompt_len"] = params.prompt_len
    record["repetition"] = params.repetition_penalty
    record["presence"] = params.presence_penalty
    record["frequency"] = params.frequency_penalty
    record["ngram"] = params.no_repeat_ngram
    record["logprobs"] = -1 if params.logprobs is None else params.logprobs
    record["processed"], record["masked"] = params.processed, params.masked
    lengths = list(map(len, params.bad_words))
    bounds = first + len(params.bias_ids)
    tokens = bounds + len(lengths) + 1 if lengths else bounds
    record["bias_first"], record["bias_count"] = first, len(params.bias_ids)
    record["word_first"], record["word_count"] = bounds, len(lengths)
    record["end_first"], record["end_count"] = tokens + sum(lengths), len(params.end_ids)
    record["end_until"] = params.end_until
    begins = tokens + np.cumsum([0, *lengths]) if lengths else ()
    bad_tokens = chain.from_iterable(params.bad_words)
    return record, np.array([*params.bias_ids, *begins, *bad_tokens, *params.end_ids], np.int32)
