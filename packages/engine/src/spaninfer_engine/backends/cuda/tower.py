"""Towers on NVIDIA GPUs: projections, norms, rotations and attention by kernels of our own.

A layer is five launches and two norms: one projection for queries, keys and values; a rotation
where they lie; attention within frames or windows; a projection; an MLP whose activation is part
of its first GEMM. What moves rows is torch's.
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

from spaninfer_engine.backends.cuda.fusions import sums_and_norms
from spaninfer_engine.backends.cuda.fusions_attention import HEADS, PROJECTION
from spaninfer_engine.backends.cuda.kernels import Kernels
from spaninfer_engine.backends.cuda.linear_weight import LinearWeight
from spaninfer_engine.backends.cuda.ops import CudaOps
from spaninfer_engine.ops.fuse import can_join, joined, joined_linears, use_of
from spaninfer_engine.ops.operation import Operation, Packable
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack
from spaninfer_engine.spec.mlp_nodes import ActivationName

HEAD_GRAIN = 8  # channels of a head come in multiples of so many, or torch attends
GRAIN = 8  # columns of weights do; zeros behind them (Qwen2.5-VL's MLPs have 3,420)
# From head to head, channels are a multiple of so many: attention in heads of 72 computes 294
# TFLOP/s where they lie together, 367 where they are 80 apart (8 x 5,476 patches, H200).
APART = 16
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
        x = _filled(x, 1)
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
        self._plans: dict[tuple[bool, int, int, int], BatchRagged] = {}  # of the step

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Projections with rotation and attention; GEMMs with activations; sums with norms."""
        return (
            _attention(self),
            _activated(self),
            *sums_and_norms(self),
            _gated(self),
            joined_linears(self, 3),
            joined_linears(self, 2),
        )

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
        """A weight that is multiplied has whole pieces of columns."""
        if operator == "linear" and argument == "weight":
            return _MATRIX
        return super().layout(operator, argument)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Tensor:
        """Copy to the device, in this backend's dtype."""
        packed = super().pack(arrays, layout)
        return _filled(packed, 1) if layout == _MATRIX else packed

    def linear(
        self, x: Tensor, *, weight: Tensor | LinearWeight, bias: Tensor | None = None
    ) -> Tensor:
        """X @ weight.T + bias: on Hopper by a kernel of ours, elsewhere by cuBLAS."""
        return super().linear(_filled(x, 1), weight=weight, bias=bias)

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
        scale: float,
        softcap: float | None = None,
        window: int | None = None,
        ahead: int | None = None,
        in_windows: bool = False,
        position_bias: Tensor | None = None,
    ) -> Tensor:
        """Rows of a frame, a window or a clip see one another; all of them in one launch."""
        size, arrays = query.shape[2], (query, key, value)
        plain = window is None and ahead is None and position_bias is None
        if not plain or size % HEAD_GRAIN or size > MAX_HEAD_SIZE or value.shape != key.shape:
            return super().attend_ragged(
                step,
                *arrays,
                scale=scale,
                softcap=softcap,
                window=window,
                ahead=ahead,
                in_windows=in_windows,
                position_bias=position_bias,
            )
        plan = self._plan(step, in_windows, query.shape, key.shape[1])
        read: Tensor = plan.run(
            *arrays,
            softmax_scale=scale,
            softcap=softcap,
            stream=self.stream,
        )
        return read

    def _plan(
        self, step: Step[Tensor], in_windows: bool, shape: torch.Size, kv_heads: int
    ) -> BatchRagged:
        """Return the division of the step's rows among thread blocks, made for its first layer."""
        rows, heads, size = shape
        key = in_windows, heads, kv_heads, size
        if key not in self._plans:
            plan = BatchRagged(
                num_heads=heads, num_kv_heads=kv_heads, head_size=size, dtype=self.kernels.element
            )
            starts = step.attends_in(windows=in_windows).batch.query_start_loc
            plan.plan(self.from_host(starts), num_rows=rows, stream=self.stream)
            self._plans[key] = plan
        return self._plans[key]


def _attention(ops: CudaTowerOps) -> Claim:
    """Claim a projection, the rotation of its queries and keys where they lie, and attention.

    Heads come to lie so far apart that each begins with a sector of memory.
    """

    def accepts(taken: Sequence[Operation]) -> bool:
        _, split, *heads, query, key, _, _ = taken
        sizes = split.constant("sizes")
        assert isinstance(sizes, tuple)
        counts = [int(each.number("heads")) for each in heads]
        dims = {int(str(size)) // n for size, n in zip(sizes, counts, strict=True)}
        return query.constants == key.constants and len(dims) == 1

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        linear, _, *parts, rotation, _, attention, _ = taken
        counts = [int(each.number("heads")) for each in parts]
        size = use_of(linear, "weight").shape[0] // sum(counts)
        weights = {
            name: _filled(part.view(sum(counts), size, -1), 1, APART).flatten(0, 1).squeeze(1)
            for name, part in joined([linear], ops, pack).items()
        }
        rope, style = int(rotation.number("rope")), rotation.constant("style")
        constants: dict[str, Any] = dict(attention.constants)

        def kernel(step: Step[Tensor], x: Tensor) -> Tensor:
            both = ops.linear(x, **weights)
            heads = both.view(len(both), sum(counts), both.shape[1] // sum(counts))
            cos, sin = step.rotations[rope]
            rotated = heads[:, : counts[0] + counts[1]]
            ops.kernels.rotate_heads_in_place(rotated, cos, sin, interleaved=style == "interleaved")
            arrays = torch.split(heads[..., :size], counts, 1)
            read = ops.attend_ragged(step, *arrays, **constants)
            return read.flatten(1)

        return kernel

    pattern = (
        *PROJECTION,
        *HEADS,
        "r = rotate q",
        "s = rotate k",
        "o = attend_ragged r s v",
        "m = merge_heads o",
    )
    return Claim("project_rotate_attend", pattern, "m", build, accepts)


def _gated(ops: CudaTowerOps) -> Claim:
    """Claim the two projections of a gated MLP, filled up with zeros, as a single GEMM."""

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        gate, up, operation = taken
        weights = {
            use.argument: torch.cat(
                [
                    _filled(pack([use_of(each, use.argument)], ops.layout("linear", use.argument)))
                    for each in (gate, up)
                ]
            )
            for use in gate.weights
        }
        act: Any = operation.constant("act")
        weight, bias = weights["weight"], weights.get("bias")
        return lambda _step, x: ops.gated_linear(_filled(x, 1), act=act, weight=weight, bias=bias)

    return Claim(
        "gated_linears",
        ("g = linear x", "u = linear x", "y = gate g u"),
        "y",
        build,
        lambda taken: can_join(taken[:2]) and _is_square(taken),
    )


def _is_square(taken: Sequence[Operation]) -> bool:
    """Return True if gate and up have as many rows, and the gate an activation of our kernels."""
    gate, up, operation = taken
    rows = {use_of(each, "weight").shape[0] for each in (gate, up)}
    return len(rows) == 1 and operation.constant("act") in activation.ACTS


def _filled(x: Tensor, axis: int = 0, grain: int = GRAIN) -> Tensor:
    """Return x with zeros behind, so that the axis is a multiple of `grain`; x itself if it is."""
    missing = -x.shape[axis] % grain
    if not missing:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


def _activated(ops: CudaTowerOps) -> Claim:
    """Claim a GEMM and the activation of its results."""

    def build(taken: Sequence[Operation], pack: Pack) -> Kernel:
        linear, activation = taken
        weights = joined([linear], ops, pack)
        act: Any = activation.constant("act")
        return lambda _step, x: ops.activated_linear(x, act=act, **weights)

    return Claim("activated_linear", ("u = linear x", "y = activation u"), "y", build)
