"""The definitions of spaninfer_op_reference behind the table, in float64 or float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np
import spaninfer_op_reference as definition
from spaninfer_op_reference import WeightFormat

from spaninfer_engine.backends.host.ops import HostOps
from spaninfer_engine.backends.host.tensors import Array
from spaninfer_engine.backends.reference.attention import (
    attend_by_definition,
    attend_selected_by_definition,
    select_by_definition,
)
from spaninfer_engine.backends.rounded_weights import (
    ROUNDED,
    TURNED,
    rounded_layout,
    rounded_weights,
    turned_experts,
)
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, ExpertWeights
from spaninfer_engine.spec.attention_nodes import RopeStyle
from spaninfer_engine.spec.mlp_nodes import ActivationName, GateName


class ReferenceOps(HostOps):
    """ops.table.Ops as numpy says it: the truth that other backends are compared with."""

    name = "reference"
    claims: tuple[Claim, ...] = ()

    def __init__(
        self, dtype: Literal["float64", "float32"] = "float64", grid: WeightFormat | None = None
    ) -> None:
        super().__init__(dtype)
        self._grid = grid
        if grid is not None:
            self.claims = (turned_experts(self),)

    # ---- tensors ---------------------------------------------------------------------------------

    def layout(self, operator: str, argument: str) -> str:
        """Weights of GEMMs may be rounded."""
        rounded = None if self._grid is None else rounded_layout(operator, argument)
        return rounded or super().layout(operator, argument)

    def pack(self, arrays: Sequence[Packable], layout: str) -> Array:
        """Return the array in a layout; without a copy where it already has it."""
        if self._grid is not None and layout in (ROUNDED, TURNED):
            arrays = rounded_weights(arrays, layout, self._grid)
        return super().pack(arrays, layout)

    # ---- rows ------------------------------------------------------------------------------------

    def linear(self, x: Array, *, weight: Array, bias: Array | None = None) -> Array:
        """X @ weight.T + bias."""
        return definition.linear(x, weight, bias)

    def head_linear(self, x: Array, *, weight: Array) -> Array:
        """One matrix per head."""
        return definition.head_linear(x, weight)

    def rms_norm(self, x: Array, *, weight: Array, eps: float, plus_one: bool) -> Array:
        """Over the last axis."""
        return definition.rms_norm(x, weight, eps, plus_one)

    def layer_norm(
        self, x: Array, *, weight: Array, eps: float, bias: Array | None = None
    ) -> Array:
        """Over the last axis."""
        return definition.layer_norm(x, weight, bias, eps)

    def softcap(self, x: Array, *, cap: float) -> Array:
        """Cap * tanh(x / cap)."""
        return definition.softcap(x, cap)

    def activation(self, x: Array, *, act: ActivationName) -> Array:
        """act(x)."""
        return definition.ACTIVATIONS[act](x)

    def gate(self, gate: Array, up: Array, *, act: GateName) -> Array:
        """act(gate) * up."""
        return definition.gated(gate, up, act)

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """X * sigmoid(gate)."""
        return x * definition.sigmoid(gate)

    def scale_rows(self, x: Array, factor: Array) -> Array:
        """X * factor."""
        return x * factor

    # ---- heads -----------------------------------------------------------------------------------

    def rotate(self, step: Step[Array], x: Array, *, rope: int, style: RopeStyle) -> Array:
        """Rotate the first channels."""
        return definition.rotate(x, *step.rotations[rope], style)

    def attend(
        self,
        step: Step[Array],
        query: Array,
        *,
        group: int,
        layer: int,
        scoring: Scoring,
        sinks: Array | None = None,
    ) -> Array:
        """Request by request."""
        return attend_by_definition(step, query, group, layer, scoring, sinks)

    def select_keys(
        self,
        step: Step[Array],
        query: Array,
        weights: Array,
        *,
        group: int,
        layer: int,
        top_k: int,
    ) -> Array:
        """Request by request."""
        return select_by_definition(step, query, weights, group, layer, top_k)

    def attend_selected(
        self,
        step: Step[Array],
        query: Array,
        selected: Array,
        *,
        group: int,
        layer: int,
        scale: float,
    ) -> Array:
        """Request by request."""
        return attend_selected_by_definition(step, query, selected, group, layer, scale)

    # ---- experts ---------------------------------------------------------------------------------

    def router(self, x: Array, *, weight: Array, bias: Array | None = None) -> Array:
        """The scores of experts."""
        return definition.linear(x, weight, bias)

    def experts(
        self,
        x: Array,
        ids: Array,
        weights: Array,
        *,
        act: GateName,
        **mlps: Unpack[ExpertWeights[Array]],
    ) -> Array:
        """Sums of the chosen experts' gated MLPs."""
        down, gate_up = mlps["down"], mlps.get("gate_up")
        if mlps["layout"] == "io":
            down = down.swapaxes(1, 2)
            gate_up = None if gate_up is None else gate_up.swapaxes(1, 2)
        gate, up = (mlps["gate"], mlps["up"]) if gate_up is None else np.split(gate_up, 2, 1)
        return definition.experts(
            x,
            gate,
            up,
            down,
            ids,
            weights,
            act,
            gate_up_bias=mlps.get("gate_up_bias"),
            down_bias=mlps.get("down_bias"),
        )
