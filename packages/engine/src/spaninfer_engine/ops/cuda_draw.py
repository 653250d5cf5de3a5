"""Tokens drawn on a GPU, kept where the next step reads them, and sent to the host."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernel_launch import Gpu
from spaninfer_kernels_cuda import sample
from torch import Tensor

from spaninfer_engine.ops.cuda_kernels import ELEMENTS
from spaninfer_engine.ops.cuda_memory import StepMemory
from spaninfer_engine.ops.device import Wish

Words = NDArray[np.int32]
Floats = NDArray[np.float32]

_ELEMENTS = {torch.float32: np.float32, **ELEMENTS}
_KEPT = 1024  # prepared launches


class Drawing:
    """Draws the tokens of a step's wanted rows, as the rows' wishes say."""

    def __init__(self, gpu: Gpu, memory: StepMemory) -> None:
        self._gpu, self._memory = gpu, memory
        sizes = memory.sizes
        record_len = sample.PARAMETERS.itemsize // 4
        self.wishes = torch.zeros(
            (sizes.requests, record_len), dtype=torch.int32, device=memory.device
        )
        self._out = torch.zeros(2 * sizes.padded_rows, dtype=torch.int32, device=memory.device)
        self._pinned = [torch.empty_like(self._out, device="cpu").pin_memory() for _ in range(2)]
        self._prepared = lru_cache(_KEPT)(self._prepare)

    def words(self, wish: Wish) -> Words:
        """Return a wish as the sampler's record."""
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
        return record.view(np.int32)

    def draw(self, logits: Tensor, stream: int, *, revises: bool) -> None:
        """Draw a token per row of logits[W V]; with `revises`, wishes may ask for penalties."""
        memory, count = self._memory, len(logits)
        prepared = self._prepared(*logits.shape, logits.stride(0), logits.dtype)
        num_bytes = prepared.workspace_bytes if revises else 0
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=logits.device)
        prepared.launch(
            logits.data_ptr(),
            parameters=self.wishes.data_ptr(),
            slots=memory.draw_row.data_ptr(),
            positions=memory.draw_position.data_ptr(),
            out=self._out.data_ptr(),
            status=self._out[count:].data_ptr(),
            tokens=memory.known.data_ptr(),
            workspace=workspace.data_ptr(),
            stream=stream,
        )

    def fetch(self, count: int) -> Tokens:
        """Send the newest step's `count` tokens to the host."""
        self._pinned.reverse()
        pinned = self._pinned[0][: 2 * count]
        pinned.copy_(self._out[: 2 * count], non_blocking=True)
        return Tokens(pinned.numpy(), torch.cuda.current_stream().record_event())

    def _prepare(
        self, rows: int, length: int, row_stride: int, dtype: torch.dtype
    ) -> sample.Prepared:
        return sample.prepare(
            rows=rows,
            length=length,
            dtype=_ELEMENTS[dtype],
            gpu=self._gpu,
            token_stride=self._memory.known.stride(0),
            row_stride=row_stride,
        )


class Tokens:
    """Tokens on their way to the host."""

    def __init__(self, pinned: Words, arrived: torch.cuda.Event) -> None:
        self._pinned, self._arrived = pinned, arrived

    def wait(self) -> Words:
        """Return them [W] when they are there; a negative `Status` where a row has none."""
        self._arrived.synchronize()
        token_ids, status = self._pinned.reshape(2, -1)
        return np.where(status == 0, token_ids, -status) if status.any() else token_ids
