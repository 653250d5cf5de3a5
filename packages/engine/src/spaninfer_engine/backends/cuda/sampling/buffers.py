"""Sampling parameters of sequences in device memory that the sampling kernel reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import sample
from torch import Tensor

from spaninfer_engine.backends.cuda.graphs.memory import StepMemory
from spaninfer_engine.step.sampling import MAX_LISTED, DeviceSamplingParams

Words = NDArray[np.int32]
Bytes = NDArray[np.uint8]


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
        if 0 < params.num_listed <= MAX_LISTED:  # with more the host samples
            self._memory.write(self._lists, row, 0, lists)
            biases = np.array(params.biases, np.float32)
            self._memory.write(self._lists, row, MAX_LISTED, biases.view(np.int32))

    @property
    def masks(self) -> Tensor | None:
        """The token masks [N ceil(V / 32)], once there are any."""
        return None if self._masks is None else self._masks.of_rows

    def mask_bits(self, count: int, vocab: int, num_logits: int) -> Bytes:
        """Return pinned memory for so many masks of a step, [M 4 ceil(V / 32)].

        There are `num_logits` logits, at most as many as a mask has bits.
        """
        if self._masks is None:
            sizes, device = self._memory.sizes, self._memory.device
            self._masks = _TokenMasks(sizes.requests, vocab, num_logits, device)
        return self._masks.bits(count)

    def send_masks(self, rows: Sequence[int], fixed: Mapping[int, Bytes]) -> None:
        """Send the masks of rows in the memory that `mask_bits` has returned, or `fixed` ones in
        their places, in front of what torch's current stream does next.
        """
        assert self._masks is not None, "masks lie in memory that was asked for"
        self._masks.send(rows, fixed)


class _TokenMasks:
    """A token mask for each of N rows, and memory that those of a step are sent through.

    A buffer in pinned memory: rows [N] int64 | masks [N words]; of M masks the last M of the rows,
    so that one copy sends both. There are two in turn: what was sent two steps ago has arrived.
    They are sent beside the forward pass, on a stream of their own: no step that reads the masks of
    these rows is under way, since tokens that it samples would have to be known. A mask that never
    changes, and that its row has, is not sent again: those of 64 rows took a step 0.4 ms.
    """

    def __init__(self, num_rows: int, vocab: int, num_logits: int, device: torch.device) -> None:
        self._num_rows, self._words = num_rows, -(-vocab // 32)
        shape = num_rows, -(-num_logits // 32)
        self.of_rows = torch.empty(shape, dtype=torch.int32, device=device)
        size = num_rows * (2 + self._words)
        self._pinned = [torch.empty(size, dtype=torch.int32, pin_memory=True) for _ in range(2)]
        self._blocks = [pinned.numpy() for pinned in self._pinned]
        self._arrived = torch.empty(size, dtype=torch.int32, device=device)
        self._kept: dict[int, Bytes] = {}  # by row: the mask that it has
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))  # frees of what was here
        self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def bits(self, count: int) -> Bytes:
        """Return the memory of the next step's masks."""
        self._pinned.reverse()
        self._blocks.reverse()
        return self._bits(count)

    def _bits(self, count: int) -> Bytes:
        first = 2 * self._num_rows
        words = self._blocks[0][first : first + count * self._words]
        return words.view(np.uint8).reshape(count, 4 * self._words)

    def send(self, rows: Sequence[int], fixed: Mapping[int, Bytes]) -> None:
        """Send the masks of rows, where they do not have them; the current stream waits."""
        kept, bits = self._kept, self._bits(len(rows))
        new = [
            place for place, row in enumerate(rows) if kept.get(row) is not fixed.get(place, bits)
        ]
        if not new:
            return
        for place in new:
            kept.pop(rows[place], None)
            if place in fixed:
                bits[place] = kept[rows[place]] = fixed[place]
        count = len(new)
        if count < len(rows):
            bits[:count] = bits[new]
        ids = slice(2 * (self._num_rows - count), 2 * self._num_rows)
        masks = slice(ids.stop, ids.stop + count * self._words)
        self._blocks[0][ids].view(np.int64)[:] = [rows[place] for place in new]
        sent = slice(ids.start, masks.stop)
        with torch.cuda.stream(self._stream):
            self._arrived[sent].copy_(self._pinned[0][sent], non_blocking=True)
            index = self._arrived[ids].view(torch.int64)
            arrived = self._arrived[masks].view(count, self._words)
            self.of_rows.index_copy_(0, index, arrived[:, : self.of_rows.shape[1]])
            self._sent.record()
        self._sent.wait()


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
