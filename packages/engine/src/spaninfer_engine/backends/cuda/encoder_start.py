"""The start of an encoder on a CUDA device: kernels are compiled, the largest step is measured."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from spaninfer_engine.backends.cuda.encoder import CudaEncoderOps
from spaninfer_engine.backends.cuda.graphs.memory import allocated_bytes, in_memory
from spaninfer_engine.backends.cuda.text_device import CudaTextDevice, TextProgram
from spaninfer_engine.backends.setup import DeviceSetup
from spaninfer_engine.backends.start import BoundModel, Tell
from spaninfer_engine.cache.memory_plan import Demand, Needs
from spaninfer_engine.spec.nodes import Encoder, ropes
from spaninfer_engine.step.batch import cut_batch
from spaninfer_engine.step.sequences import Sequences

_LESS = "lower --step-tokens or --max-len"


class CudaEncoderStart:
    """An encoder bound to the CUDA backend, and the most that its steps can be."""

    def __init__(self, bound: BoundModel, demand: Demand) -> None:
        self._ops: CudaEncoderOps = bound.ops
        self._demand = demand
        assert isinstance(bound.model, Encoder), bound.model
        self._pool, rotations = bound.model.pool, ropes(bound.model)
        self._program = TextProgram(bound.programs.run, self._ops, rotations, demand.max_len)

    def measure(self, tell: Tell) -> Needs:
        """Compute the largest step, which compiles what is missing; return what it takes.

        Raises ConfigError where it is too large.
        """
        tell("largest step", 0, 1)
        weights, available = allocated_bytes(self._ops.device), self._ops.available_bytes()
        with in_memory("steps of this size", _LESS):
            self._ops.warm_up(self._largest_step, partial(tell, "kernels"))
            taken = available - self._ops.available_bytes()
            torch.cuda.empty_cache()  # of another stream than that of later steps
        tell("largest step", 1, 1)
        return Needs(weights, max(taken, 0))

    def device(self, setup: DeviceSetup, tell: Tell) -> CudaTextDevice:  # noqa: ARG002
        """Return the device."""
        return CudaTextDevice(self._program, setup.sequences)

    def _largest_step(self) -> None:
        """Compute texts that fill a step, or the longest one, which has a step of its own."""
        demand = self._demand
        most = max(demand.step_tokens, demand.max_len)
        lengths = np.full(-(-most // demand.max_len), demand.max_len, np.int32)
        sequences = Sequences(0, max_len=demand.max_len, span_len=1, num_rows=len(lengths))
        self._program.run(cut_batch(lengths, self._pool.token), sequences)
