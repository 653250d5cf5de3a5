"""Runners on a GPU: what their steps take is measured first, then they are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from spaninfer_kernel_launch import NotCompiled, known_only

from spaninfer_engine.ops.cuda import CudaOps
from spaninfer_engine.ops.cuda_forms import Forms, most_prompt_rows
from spaninfer_engine.ops.cuda_memory import Sizes, allocated_bytes, in_memory
from spaninfer_engine.ops.cuda_steps import CudaSteps
from spaninfer_engine.run.claim import Bound
from spaninfer_engine.run.memory import Demand, Needs
from spaninfer_engine.run.overlap import OverlappedRunner
from spaninfer_engine.run.rotary import Rotary
from spaninfer_engine.run.sample import Sampler
from spaninfer_engine.spec.nodes import Decoder, ropes
from spaninfer_engine.spec.tree import parameter_count

_LESS = "lower --step-tokens, --max-running or --max-len"


class CudaModel:
    """A model bound to the CUDA backend, and the most that its requests and steps can be.

    `few_layers` returns the same model with few layers, which launches the same kernels.
    """

    def __init__(
        self,
        bound: Bound[Any],
        few_layers: Callable[[], Bound[Any]],
        ops: CudaOps,
        decoder: Decoder,
        demand: Demand,
        *,
        span_len: int,
        graphs: bool,
    ) -> None:
        self._bound, self._few_layers = bound, few_layers
        self._ops, self._decoder = ops, decoder
        self._demand, self._span_len, self._graphs = demand, span_len, graphs
        self._is_plain = any(step.name == "plain_attention" for step in bound.text.steps)
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

    def rehearse(self, tell: Callable[[int, int], None]) -> Needs:
        """Compute the largest step and capture the largest graphs; return what all of it takes.

        Where a kernel of any step that can come is missing, all of them are noted first and those
        that no earlier start has compiled are compiled side by side; `tell` hears how many are
        done, and of how many. Raises ConfigError where steps are too large.
        """
        with suppress(NotCompiled), known_only():
            return self._measured()
        self._ops.compile(self._walk, tell)
        return self._measured()

    def _measured(self) -> Needs:
        weights, available = allocated_bytes(self._ops.device), self._ops.available_bytes()
        with in_memory("steps of this size", _LESS):
            steps = self._steps(self._bound, [1] * len(self._decoder.groups), self._demand)
            steps.rehearse()
            taken = available - self._ops.available_bytes()
            graphs = steps.graph_bytes()
            steps.close()
        del steps
        gc.collect()  # in circles lie its tables, 40 MiB (0.5B, 32,768 positions) to 1 GiB
        return Needs(weights, taken, graphs)

    def _walk(self) -> None:
        with in_memory("steps of this size", _LESS):
            steps = self._steps(self._few_layers(), [1] * len(self._decoder.groups), self._demand)
            steps.rehearse()
            steps.close()

    def runner(
        self, num_spans: Sequence[int], max_len: int, progress: Callable[[int, int], None]
    ) -> OverlappedRunner:
        """Return a runner with so many spans per cache group, for requests of up to `max_len`.

        Graphs are captured here.
        """
        demand = replace(self._demand, max_len=max_len)
        with in_memory("spans and graphs", "lower --memory"):
            steps = self._steps(self._bound, num_spans, demand)
            steps.capture(progress)
        return OverlappedRunner(
            steps,
            Sampler(),
            self._rotaries,
            num_groups=len(self._decoder.groups),
            span_len=self._span_len,
            max_len=max_len,
            max_running=demand.max_running,
        )

    def _steps(self, bound: Bound[Any], num_spans: Sequence[int], demand: Demand) -> CudaSteps:
        groups = self._decoder.groups
        most_rows = 0  # plain attention goes from prompt to prompt, as the host knows them
        if not self._is_plain:
            most_rows = most_prompt_rows(len(self._decoder.layers), parameter_count(self._decoder))
        return CudaSteps(
            self._ops,
            bound.run,
            tuple(
                self._ops.cache(group, count, self._span_len)
                for group, count in zip(groups, num_spans, strict=True)
            ),
            self._angles,
            Sizes(
                requests=demand.max_running,
                rows=demand.step_tokens,
                max_len=demand.max_len,
                span_len=self._span_len,
                num_groups=len(groups),
            ),
            num_axes=max((len(rope.sections) or 1 for rope in self._ropes), default=1),
            reads_all_columns=self._is_plain,
            forms=Forms(demand.max_running, most_rows) if self._graphs else None,
        )
