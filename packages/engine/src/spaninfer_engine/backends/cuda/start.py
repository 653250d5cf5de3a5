"""The start of a CUDA device: its steps are measured first, graphs are captured last."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from spaninfer_kernel_launch import NotCompiled, cached_only
from torch import Tensor

from spaninfer_engine.backends.cuda.device import CudaDevice, CudaProgram
from spaninfer_engine.backends.cuda.graphs.memory import Sizes, allocated_bytes, in_memory
from spaninfer_engine.backends.cuda.graphs.shapes import (
    GraphShapes,
    launched_tokens,
    max_prompt_tokens,
)
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.backends.cuda.tower import CudaTowerOps
from spaninfer_engine.backends.cuda.warmup import largest_input
from spaninfer_engine.backends.host.tower import HostTower
from spaninfer_engine.backends.setup import DeviceSetup, KVMemory
from spaninfer_engine.backends.start import BoundModel, Tell
from spaninfer_engine.cache.memory_plan import Demand, Needs
from spaninfer_engine.ops.bound import TEXT, Programs
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.spec.nodes import Decoder, ropes
from spaninfer_engine.spec.tree import parameter_count
from spaninfer_engine.step.plan import Tuning
from spaninfer_engine.step.sequences import Sequences

BY_PROMPT = frozenset({"plain_attention", "sparse_selection", "sparse_attention"})
"""Claims that go from prompt to prompt, as the host knows them."""

_LESS = "lower --step-tokens, --max-running or --max-len"


class CudaStart:
    """A model bound to the CUDA backend, and the most that its sequences and steps can be."""

    def __init__(
        self, bound: BoundModel, demand: Demand, *, span_len: int, graphs: bool, tuning: Tuning
    ) -> None:
        self._bound, self._few_layers = bound.programs, bound.few_layers
        ops: CudaOps = bound.ops
        decoder = bound.model
        assert isinstance(decoder, Decoder), decoder
        self._ops, self._decoder = ops, decoder
        self._demand, self._span_len, self._graphs = demand, span_len, graphs
        self._tuning = tuning
        self._is_by_prompt = any(step.name in BY_PROMPT for step in self._bound[TEXT].kernels)
        self._ropes = ropes(decoder)
        tables = [ops.rotation_table(rope, demand.max_len) for rope in self._ropes]
        self._angles = [
            table or rope.frequencies.dim // 2
            for table, rope in zip(tables, self._ropes, strict=True)
        ]
        self._rotaries = [
            Rotary(rope) if table is None else None
            for table, rope in zip(tables, self._ropes, strict=True)
        ]

    def measure(self, tell: Tell) -> Needs:
        """Compute the largest step and capture the largest graphs; return what all of it takes.

        Where a kernel of any step that can come is missing, all of them are noted first and those
        that no earlier start has compiled are compiled side by side. Raises ConfigError where steps
        are too large.
        """
        tell("largest step", 0, 1)
        needs = self._needs(partial(tell, "kernels"))
        tell("largest step", 1, 1)
        return needs

    def _needs(self, tell: Callable[[int, int], None]) -> Needs:
        with suppress(NotCompiled), cached_only():
            return self._measured()
        self._ops.compile(self._walk, tell)
        return self._measured()

    def _measured(self) -> Needs:
        weights, available = allocated_bytes(self._ops.device), self._ops.available_bytes()
        with in_memory("steps of this size", _LESS):
            device = self._largest(self._bound)
            device.warm_up()
            taken = available - self._ops.available_bytes()
            graphs = device.graph_bytes()
            device.close()
        del device
        gc.collect()  # in circles lie its tables, 40 MiB (0.5B, 32,768 positions) to 1 GiB
        return Needs(weights, taken, graphs)

    def _walk(self) -> None:
        with in_memory("steps of this size", _LESS):
            device = self._largest(self._few_layers())
            device.warm_up()
            device.close()

    def device(self, setup: DeviceSetup, tell: Tell) -> CudaDevice:
        """Return the device; graphs are captured here."""
        with in_memory("spans and graphs", "lower --memory"):
            device = self._device(self._bound, setup)
            device.capture(partial(tell, "graphs"))
        return device

    def _largest(self, bound: Programs[Any]) -> CudaDevice:
        """Return a device for the most of everything but spans."""
        groups = len(self._decoder.groups)
        sequences = Sequences(
            groups, max_len=self._demand.max_len, span_len=self._span_len, num_rows=1
        )
        return self._device(bound, DeviceSetup(sequences, (1,) * groups))

    def _device(self, bound: Programs[Any], setup: DeviceSetup) -> CudaDevice:
        groups = self._decoder.groups
        return CudaDevice(
            self._ops,
            CudaProgram(
                forward=bound.run,
                text=bound[TEXT],
                angles=self._angles,
                rotaries=tuple(self._rotaries),
                ropes=tuple(map(Rotary, self._ropes)),
                num_axes=max((len(rope.sections) or 1 for rope in self._ropes), default=1),
                reads_whole_tables=self._is_by_prompt,
            ),
            Sizes(
                requests=self._demand.max_running,
                rows=self._demand.step_tokens,
                max_len=setup.sequences.max_len,
                span_len=self._span_len,
                num_groups=len(groups),
                prompt_logits=self._tuning.prompt_logits,
            ),
            KVMemory.allocate(self._ops, groups, setup),
            setup,
            self._shapes() if self._graphs else None,
        )

    def _shapes(self) -> GraphShapes:
        """Return the shapes to capture; no prompts where the host has to know where they are."""
        size = len(self._decoder.layers), parameter_count(self._decoder)
        return GraphShapes(
            self._demand.max_running,
            0 if self._is_by_prompt else max_prompt_tokens(*size),
            self._tuning.mixed_prompt_tokens,
            launched_tokens(*size),
        )


def warm_up_towers(towers: Sequence[HostTower[Tensor]], tell: Tell) -> int:
    """Read the weights of towers, compile their kernels and run the largest batch of each; return
    the bytes that it takes. ConfigError where it does not fit.
    """
    most = 0
    for number, tower in enumerate(towers):
        tell("towers", number, len(towers))
        ops = tower.ops
        assert isinstance(ops, CudaTowerOps), ops
        with in_memory("towers of the model", "send text alone, or choose a smaller model"):
            tower.load()
            free = ops.available_bytes()
            ops.warm_up(partial(_encode_largest, tower), partial(tell, "kernels"))
            most = max(most, free - ops.available_bytes())
            torch.cuda.empty_cache()
    if towers:
        tell("towers", len(towers), len(towers))
    return most


def _encode_largest(tower: HostTower[Tensor]) -> None:
    tower.encode([largest_input(tower.tower, tower.max_rows)])
