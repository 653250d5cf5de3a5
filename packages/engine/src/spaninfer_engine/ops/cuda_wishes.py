"""How requests want their tokens drawn, in device memory that the sampler reads."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import sample

from spaninfer_engine.ops.cuda_memory import StepMemory
from spaninfer_engine.ops.device import MOST_LISTED, Wish

Words = NDArray[np.int32]


class Wishes:
    """A row per request: the sampler's record, and the lists that it points into.

    lists[N 2 L]: first ids of biases | where each bad word begins, and where the last one ends |
    their tokens | end ids; then biases. Places are counted from the array's beginning.
    """

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        count, words = memory.sizes.requests, sample.PARAMETERS.itemsize // 4
        self.records = torch.zeros((count, words), dtype=torch.int32, device=memory.device)
        self._lists = torch.zeros((count, 2 * MOST_LISTED), dtype=torch.int32, device=memory.device)
        lists = self._lists.data_ptr()
        self.pools = sample.Pools(
            bias_ids=lists,
            biases=lists + 4 * MOST_LISTED,
            word_bounds=lists,
            word_tokens=lists,
            end_ids=lists,
        )

    def write(self, row: int, wish: Wish) -> None:
        """Have a row's tokens drawn in this way from the next step on."""
        record, lists = packed(wish, first=row * 2 * MOST_LISTED)
        self._memory.write(self.records, row, 0, record.view(np.int32))
        if wish.num_listed <= MOST_LISTED:  # else the host draws
            self._memory.write(self._lists, row, 0, lists)
            biases = np.array(wish.biases, np.float32)
            self._memory.write(self._lists, row, MOST_LISTED, biases.view(np.int32))


def packed(wish: Wish, *, first: int) -> tuple[NDArray[np.void], Words]:
    """Return a wish as the sampler's record, and the words of its lists, which begin at `first`."""
    record = sample.defaults(1)
    record["seed"] = wish.seed
    record["temperature"] = wish.temperature
    record["top_k"] = wish.top_k
    record["top_p"] = wish.top_p
    record["min_p"] = wish.min_p
    record["prompt_len"] = wish.prompt_len
    record["repetition"] = wish.repetition_penalty
    record["presence"] = wish.presence_penalty
    record["frequency"] = wish.frequency_penalty
    record["ngram"] = wish.no_repeat_ngram
    record["logprobs"] = -1 if wish.logprobs is None else wish.logprobs
    lengths = list(map(len, wish.bad_words))
    bounds = first + len(wish.bias_ids)
    tokens = bounds + len(lengths) + 1 if lengths else bounds
    record["bias_first"], record["bias_count"] = first, len(wish.bias_ids)
    record["word_first"], record["word_count"] = bounds, len(lengths)
    record["end_first"], record["end_count"] = tokens + sum(lengths), len(wish.end_ids)
    record["end_until"] = wish.end_until
    begins = tokens + np.cumsum([0, *lengths]) if lengths else ()
    bad_tokens = chain.from_iterable(wish.bad_words)
    return record, np.array([*wish.bias_ids, *begins, *bad_tokens, *wish.end_ids], np.int32)
