"""The device memory that steps read, at fixed addresses, and how the host writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import inputs
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices
from spaninfer_engine.backends.cuda.graphs.pending_writes import PendingWrites
from spaninfer_engine.backends.cuda.graphs.shapes import (
    PROMPT_TOKENS,
    GraphShape,
    StepShape,
    max_prompts,
)
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.step import Rotation
from spaninfer_engine.step.batch import Run

Words = NDArray[np.int32]

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation: where a graph is made of a capture, and launched


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Upper bounds that size a device's buffers: `requests` that run, `rows` (tokens) of a step,
    tokens of a request (`max_len`), and logits of prompts in a step.
    """

    requests: int
    rows: int
    max_len: int
    span_len: int
    num_groups: int
    prompt_logits: int

    @property
    def max_spans(self) -> int:
        """Span numbers of one request, in one cache group."""
        return -(-self.max_len // self.span_len)

    @property
    def slices(self) -> int:
        """Slices of a step that is padded to a shape."""
        return self.requests + max_prompts(self.requests)

    @property
    def padded_rows(self) -> int:
        """Rows of a step that is padded to a shape."""
        most: int = max(self.rows, *PROMPT_TOKENS)
        return self.requests + most


@contextmanager
def in_memory(what: str, way_out: str) -> Iterator[None]:
    """Say by ConfigError, with the numbers and the way out, that the device is too small."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = (number / 2**30 for number in torch.cuda.mem_get_info())
        raise ConfigError(
            f"{what} do not fit into the device's memory: of {total:.1f} GiB, {free:.1f} were "
            f"still free when that was noticed; {way_out}"
        ) from error


def lacks_memory(error: Exception) -> bool:
    """Return True if an error means out of device memory. Torch, the driver and cuBLAS, by
    their messages.
    """
    is_named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    has_code = getattr(error, "error_code", None) == _OUT_OF_MEMORY
    return is_named or has_code or "CUBLAS_STATUS_ALLOC_FAILED" in str(error)


def allocated_bytes(device: torch.device) -> int:
    """Return what lies in tensors on the device."""
    return torch.cuda.memory_allocated(device)


class StepMemory:
    """Rows of requests, and what the kernels of a step read.

    `angles` are tables of cosines and sines [max_len D/2] per rotary embedding, or the width D/2
    where the host sends those of every step.
    """

    def __init__(
        self,
        sizes: Sizes,
        angles: Sequence[Rotation[Tensor] | int],
        kernels: inputs.PreparedInputs,
        device: torch.device,
    ) -> None:
        self.sizes, self.device, self._kernels = sizes, device, kernels
        self.tokens = self._ints(sizes.requests, sizes.max_len + 1)
        self.tables = [self._ints(sizes.requests, sizes.max_spans) for _ in range(sizes.num_groups)]
        rows = sizes.padded_rows
        self.token_ids = self._ints(rows)
        self.positions = self._ints(rows)
        self.slots = [self._ints(rows) for _ in range(sizes.num_groups)]
        self.logit_indices = self._ints(rows)
        self._logit_rows, self._logit_seq_lens = self._ints(rows), self._ints(rows)
        self.sampled_rows = self._ints(rows)
        self.sampled_positions = self._ints(rows)
        self._angles = tuple(angles)
        self.rotations = [Rotation(*self._floats(2, rows, _width(each))) for each in angles]
        self._block = self._ints(inputs.columns_len(sizes.slices))
        self._pinned = [torch.empty_like(self._block, device="cpu").pin_memory() for _ in range(2)]
        self._columns = [inputs.Columns.of(each.numpy(), sizes.slices) for each in self._pinned]
        self._writes = PendingWrites()
        self._input_addresses = torch.from_numpy(self._addresses()).to(device)

    @property
    def columns(self) -> inputs.Columns:
        """The columns of the next step, in pinned memory."""
        return self._columns[0]

    def write(self, array: Tensor, row: int, first: int, words: Words) -> None:
        """Queue words for a row of an int32 array, from column `first` on, for the next step."""
        assert first + len(words) <= array.shape[1], "words behind the end of a row"
        self._writes.add(array.data_ptr() + 4 * (row * array.stride(0) + first), words)

    def forget_written(self) -> None:
        """Drop the queued writes."""
        self._writes.forget()

    def receive(
        self,
        num_slices: int,
        angles: Sequence[Rotation[NDArray[np.float32]] | None],
        stream: int,
    ) -> None:
        """Let the GPU read the columns of so many slices, and all that was written, on torch's
        current stream, whose handle is `stream`.

        `angles` has an entry per rotary embedding: None where the device has a table of its own.
        """
        self._kernels.receive(
            self._writes.take(),
            self._block.data_ptr(),
            self._pinned[0].data_ptr(),
            capacity=self.sizes.slices,
            num_slices=num_slices,
            stream=stream,
        )
        for place, sent in zip(self.rotations, angles, strict=True):
            if sent is not None:
                for out, array in zip(place, sent, strict=True):
                    out[: len(array)].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        self._pinned.reverse()
        self._columns.reverse()

    def send(self, to: int, words: Tensor, count: int, stream: int) -> None:
        """Send the first of words[N] to pinned memory at the address `to`."""
        self._kernels.send(to, words.data_ptr(), count, stream=stream)

    def blank(self, shape: GraphShape) -> None:
        """Fill a step of this shape with padding, on torch's current stream, and wait for it.

        It computes its decodes, whose keys go nowhere; its prompts are empty.
        """
        block = np.zeros_like(self._pinned[0].numpy())
        columns = inputs.Columns.of(block, self.sizes.slices)
        columns.table_rows[:] = columns.sample_positions[:] = -1
        columns.query_start_loc[:] = np.minimum(
            np.arange(len(columns.query_start_loc)), shape.decodes
        )
        columns.logit_start_loc[:] = columns.query_start_loc
        self._block.copy_(torch.from_numpy(block))

    def derive(self, shape: StepShape, stream: int) -> None:
        """Launch derive_inputs: ids, positions, cache slots and angles of the step's tokens."""
        self._kernels.derive(
            self._input_addresses,
            num_slices=shape.num_slices,
            num_tokens=shape.num_tokens,
            num_logits=shape.num_logits,
            stream=stream,
        )

    def slices(
        self, shape: StepShape, prefills: tuple[Run, ...], table_width: int
    ) -> AttentionSlices:
        """Return the step's slices on the device, with `table_width` columns of the tables."""
        columns = inputs.Columns.of(self._block, self.sizes.slices)
        return AttentionSlices(
            rows=columns.table_rows[: shape.num_slices],
            lengths=columns.stops[: shape.num_slices],
            bounds=columns.query_start_loc[: shape.num_slices + 1],
            slots=tuple(slots[: shape.num_tokens] for slots in self.slots),
            tables=tuple(table[:, :table_width] for table in self.tables),
            num_decodes=shape.num_decodes,
            prefills=prefills,
            logit_rows=self._logit_rows[: shape.num_logits],
            logit_seq_lens=self._logit_seq_lens[: shape.num_logits],
            span_len=self.sizes.span_len,
        )

    def _addresses(self) -> NDArray[np.int64]:
        """Return what the kernels read, see kernels_cuda.inputs.Addresses."""
        addresses = inputs.Addresses(
            columns=self._block.data_ptr(),
            capacity=self.sizes.slices,
            tokens=self.tokens.data_ptr(),
            tokens_stride=self.tokens.stride(0),
            token_ids=self.token_ids.data_ptr(),
            positions=self.positions.data_ptr(),
            logit_indices=self.logit_indices.data_ptr(),
            logit_rows=self._logit_rows.data_ptr(),
            logit_seq_lens=self._logit_seq_lens.data_ptr(),
            sampled_rows=self.sampled_rows.data_ptr(),
            sampled_positions=self.sampled_positions.data_ptr(),
        )
        groups = [
            inputs.Group(table.data_ptr(), table.stride(0), slots.data_ptr(), self.sizes.span_len)
            for table, slots in zip(self.tables, self.slots, strict=True)
        ]
        ropes = [
            inputs.Rope(
                cosines=table.cos.data_ptr(),
                sines=table.sin.data_ptr(),
                cosine=place.cos.data_ptr(),
                sine=place.sin.data_ptr(),
                half=_width(table),
            )
            for table, place in zip(self._angles, self.rotations, strict=True)
            if isinstance(table, Rotation)
        ]
        return addresses.words(groups, ropes)

    def _ints(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.device)

    def _floats(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self.device)


def _width(angles: Rotation[Tensor] | int) -> int:
    """Return D/2."""
    return angles if isinstance(angles, int) else angles.cos.shape[1]
