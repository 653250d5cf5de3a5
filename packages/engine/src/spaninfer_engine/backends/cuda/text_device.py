"""Steps of texts on a GPU: launched while the one before is computed, and fetched behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spaninfer_engine.backends.cuda.encoder import CudaEncoderOps
from spaninfer_engine.backends.cuda.graphs.memory import lacks_memory
from spaninfer_engine.backends.host.device import build_step
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.step import Rotation, Step
from spaninfer_engine.resource import Resource
from spaninfer_engine.spec.attention_nodes import Rope
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Updates
from spaninfer_engine.step.sequences import Sequences

Floats = NDArray[np.float32]


class TextProgram:
    """A bound encoder with its operators, and the angles of its rotary embeddings by position.

    Angles that change with the length of a text are computed by the host, step by step.
    """

    def __init__(
        self,
        forward: Callable[[Step[Tensor]], Tensor],
        ops: CudaEncoderOps,
        ropes: Sequence[Rope],
        max_len: int,
    ) -> None:
        self.ops, self._forward = ops, forward
        self._angles = [ops.rotation_table(rope, max_len) or Rotary(rope) for rope in ropes]

    def run(self, batch: Batch, sequences: Sequences) -> Tensor:
        """Launch a step on torch's current stream; return the vectors [R C], in float32."""
        step: Step[Tensor] = build_step(batch, sequences, self.ops, (), ())
        rotations = tuple(self._rotation(each, batch, step) for each in self._angles)
        step = replace(step, rotations=rotations)
        self.ops.prepare(step)
        return self._forward(step)

    def _rotation(
        self, angles: Rotation[Tensor] | Rotary, batch: Batch, step: Step[Tensor]
    ) -> Rotation[Tensor]:
        """Return what a rotary embedding rotates the rows of a step by."""
        if isinstance(angles, Rotation):
            positions = step.positions[0]
            return Rotation(angles.cos[positions], angles.sin[positions])
        cos, sin = angles.of_batch(batch, batch.positions()[None])
        return Rotation(self.ops.from_host(cos), self.ops.from_host(sin))


@dataclass(frozen=True, slots=True)
class CudaTexts:
    """step.device.LaunchedTexts: vectors [R C] on their way to pinned memory."""

    rows: Tensor
    arrived: torch.cuda.Event

    def wait(self) -> None:
        """Wait for them."""
        self.arrived.synchronize()

    def vectors(self) -> Floats:
        """Return them, in memory that is theirs."""
        rows: Floats = self.rows.numpy()
        return rows


class CudaTextDevice(Resource):
    """step.device.TextDevice that reads the texts of `sequences` in place."""

    lookahead = 1  # as far as the host is ahead: one step to be computed next

    def __init__(self, program: TextProgram, sequences: Sequences) -> None:
        self._program: TextProgram | None = program
        self._sequences = sequences
        device = program.ops.device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))  # weights, tables of angles

    def launch(self, batch: Batch, updates: Updates) -> CudaTexts:  # noqa: ARG002
        """Launch a step behind those before, and the copy of its vectors."""
        assert self._program is not None, "the device is closed"
        ops = self._program.ops
        with torch.cuda.stream(self._stream):
            try:
                made = self._program.run(batch, self._sequences)
                rows = torch.empty(made.shape, dtype=torch.float32, pin_memory=True)
                rows.copy_(made, non_blocking=True)
                return CudaTexts(rows, self._stream.record_event())
            except Exception as error:
                if not lacks_memory(error):
                    raise
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        raise NoMemory(batch.num_tokens, ops.available_bytes())

    def close(self) -> None:
        """Wait for what is under way and give the weights back; idempotent."""
        if self._program is not None:
            self._stream.synchronize()
        self._program = None
