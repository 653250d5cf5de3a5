"""Towers on NVIDIA GPUs: projections, norms, rotations and attention by kernels of our own.

A layer is five launches and two norms: one projection for queries, keys and values; a rotation
where they lie; attention within frames or windows; a projection; an MLP whose activation is part
of its first GEMM (fusions/ragged.py). What moves rows is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from span_attention import BatchRagged
from span_attention.ragged import MAX_HEAD_SIZE
from spaninfer_kernel_launch import NotCompiled, cached_only
from spaninfer_kernels_cuda import activation, gemm
from torch import Tensor

from spaninfer_engine.backends.cuda.fusions.ragged import claims_of_sequences, filled
from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.backends.cuda.weights.linear import LinearWeight
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.scoring import RaggedScoring
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim
from spaninfer_engine.spec.mlp_nodes import ActivationName

HEAD_GRAIN = 8  # channels of a head come in multiples of this many, or torch attends
_MATRIX = "matrix"  # layout of a weight whose columns are filled up


class TowerKernels(Kernels):
    """Launches of towers: on Hopper a GEMM takes any number of rows, and adds in the same order.

    So rows do not depend on what is encoded beside them. It costs time: where K is 1,280, cuBLAS is
    1.4 times as fast, 20 ms of 211 for 8 pictures of 1024 x 1024 pixels (Qwen2-VL-7B, H200).
    Elsewhere, and for weights whose sizes are no multiples of 8, cuBLAS multiplies.
    """

    def multiply(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        gate: activation.Act | None = None,
        act: activation.Act | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The same for x whose columns may have to be filled up as those of the weight are."""
        x = filled(x, 1)
        return super().multiply(x, weight, bias, gate=gate, act=act, residual=residual)

    def prepare_every_size(self) -> None:
        """Prepare every tile of the GEMMs that came so far."""
        for outputs, inner, gate, act in tuple(self._multiplied):
            for tile in gemm.every_many(self.gpu.shared_bytes):
                self._prepare_tile(gemm.Shape(1, outputs, inner), gate, act, inner, tile)

    @cached_property
    def _multiplied(self) -> set[tuple[int, int, activation.Act | None, activation.Act | None]]:
        """Outputs, K, gate and activation of GEMMs."""
        return set()

    def _is_gemm_faster(
        self, rows: int, outputs: int, inner: int, gate: activation.Act | None
    ) -> bool:
        shape = gemm.Shape(rows, outputs, inner)
        return inner % 8 == 0 and gemm.tuning.takes_many(
            shape, self.gpu.arch, gated=gate is not None
        )

    def _prepare_gemm(
        self,
        rows: int,
        outputs: int,
        inner: int,
        gate: activation.Act | None,
        act: activation.Act | None,
        row_stride: int,
    ) -> gemm.PreparedGemm:
        self._multiplied.add((outputs, inner, gate, act))
        tile = gemm.choose_many(rows, outputs, self.gpu.shared_bytes)
        return self._prepare_tile(gemm.Shape(rows, outputs, inner), gate, act, row_stride, tile)

    def _prepare_tile(
        self,
        shape: gemm.Shape,
        gate: activation.Act | None,
        act: activation.Act | None,
        row_stride: int,
        tile: gemm.Wide,
    ) -> gemm.PreparedGemm:
        return gemm.prepare(
            shape,
            dtype=self.element,
            gpu=self.gpu,
            gate=gate,
            act=act,
            row_stride=row_stride,
            tile=tile,
        )


class CudaTowerOps(CudaOps):
    """ops.table.Ops for the towers of a model; one step at a time, on one stream."""

    def __init__(self, dtype: Any, device: str = "cuda", *, batch_invariant: bool = False) -> None:
        super().__init__(dtype, device, batch_invariant=batch_invariant)
        self.kernels = TowerKernels(self.dtype, self.device)
        self._plans: dict[tuple[bool, int, int, int, bool], BatchRagged] = {}  # of the step

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Projections with rotation and attention; GEMMs with activations; sums with norms."""
        return tuple(claims_of_sequences(self))

    def warm_up(self, encode: Callable[[], object], tell: Callable[[int, int], None]) -> None:
        """Run an encoding; where kernels are missing, compile all that others need, side by side.

        What it takes of memory beside the weights stays with torch.
        """

        def walk() -> None:
            encode()
            self.kernels.prepare_every_size()

        with torch.cuda.stream(torch.cuda.Stream(self.device)):  # type: ignore[no-untyped-call]
            try:
                with cached_only():
                    walk()
            except NotCompiled:
                self.compile(walk, tell)
                walk()
            torch.cuda.synchronize(self.device)

    def prepare(self, step: Step[Tensor]) -> None:  # noqa: ARG002
        """Forget what the step before was divided into."""
        self._plans.clear()

    def layout(self, operator: str, argument: str) -> str:
        """A weight that is multiplied has whole pieces of columns; biases of scores are float32."""
        if operator == "linear" and argument == "weight":
            return _MATRIX
        if argument == "position_bias":
            return "float32"
        return super().layout(operator, argument)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Tensor:
        """Copy to the device, in this backend's dtype."""
        packed = super().pack(arrays, layout)
        return filled(packed, 1) if layout == _MATRIX else packed

    def linear(
        self, x: Tensor, *, weight: Tensor | LinearWeight, bias: Tensor | None = None
    ) -> Tensor:
        """X @ weight.T + bias: on Hopper by a kernel of ours, elsewhere by cuBLAS."""
        return super().linear(filled(x, 1), weight=weight, bias=bias)

    def activated_linear(
        self, x: Tensor, *, act: ActivationName, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """act(x @ weight.T + bias)."""
        if self.kernels.has_gemm(x, weight):
            return self.kernels.multiply(x, weight, bias, act=act)
        return self.activation(self.linear(x, weight=weight, bias=bias), act=act)

    def attend_ragged(
        self,
        step: Step[Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scoring: RaggedScoring,
        position_bias: Tensor | None = None,
    ) -> Tensor:
        """Rows of a text, a frame, a window or a clip see one another, all in one launch."""
        size, arrays = query.shape[2], (query, key, value)
        if size % HEAD_GRAIN or size > MAX_HEAD_SIZE or value.shape != key.shape:
            return super().attend_ragged(
                step, *arrays, scoring=scoring, position_bias=position_bias
            )
        biased = position_bias is not None
        plan = self._plan(step, scoring.in_windows, query.shape, key.shape[1], biased=biased)
        read: Tensor = plan.run(
            *arrays,
            softmax_scale=scoring.scale,
            softcap=scoring.softcap,
            window=scoring.window,
            ahead=scoring.ahead,
            biases=position_bias,
            stream=self.stream,
        )
        return read

    def _plan(
        self,
        step: Step[Tensor],
        in_windows: bool,
        shape: torch.Size,
        kv_heads: int,
        *,
        biased: bool,
    ) -> BatchRagged:
        """Return the division of the step's rows among thread blocks, made for its first layer."""
        rows, heads, size = shape
        key = in_windows, heads, kv_heads, size, biased
        if key not in self._plans:
            plan = BatchRagged(
                num_heads=heads,
                num_kv_heads=kv_heads,
                head_size=size,
                dtype=self.kernels.element,
                biased=biased,
            )
            starts = step.attends_in(windows=in_windows).batch.query_start_loc
            plan.plan(self.from_host(starts), num_rows=rows, stream=self.stream)
            self._plans[key] = plan
        return self._plans[key]
