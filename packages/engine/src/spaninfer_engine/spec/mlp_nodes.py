"""The MLP nodes of a model tree: gated, plain, and routed to experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from spaninfer_engine.spec.weight_nodes import Linear, Weight

ActivationName = Literal["silu", "gelu", "gelu_tanh", "relu", "quick_gelu"]
GateName: TypeAlias = ActivationName | Literal["clamped_swiglu"]  # of experts


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(act(gate(x)) * up(x))."""

    gate: Linear
    up: Linear
    down: Linear
    act: ActivationName


@dataclass(frozen=True, slots=True)
class FusedGatedMLP:
    """The same with [gate | up] as one projection, or [up | gate]."""

    gate_up: Linear
    down: Linear
    act: ActivationName
    up_first: bool = False


@dataclass(frozen=True, slots=True)
class PlainMLP:
    """down(act(up(x)))."""

    up: Linear
    down: Linear
    act: ActivationName


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing function: from router logits to a few weighted experts."""

    kind: Literal["softmax", "sigmoid"]
    top_k: int
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    group_topk: int = 1
    group_score: Literal["max", "top2"] = "max"


@dataclass(frozen=True, slots=True)
class EachExpert:
    """One tensor per expert and projection."""

    gate: tuple[Weight, ...]  # [inner, hidden] each
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]  # [hidden, inner] each


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Experts in two tensors: "oi" is [E, 2I, H] and [E, H, I], "io" [E, H, 2I] and [E, I, H]."""

    gate_up: Weight
    down: Weight
    layout: Literal["oi", "io"]
    in_turn: bool = False  # rows of gate and up take turns, instead of [gate | up]
    gate_up_bias: Weight | None = None  # [E, 2I], in the order of gate_up
    down_bias: Weight | None = None  # [E, H]


@dataclass(frozen=True, slots=True)
class RoutedMLP:
    """A router that sends each token to a few of many gated MLPs."""

    router: Linear
    correction: Weight | None  # [E] or [1, E]: added to scores for the choice, not for the weights
    routing: Routing
    experts: EachExpert | StackedExperts
    act: GateName
    input_scaled: bool = False  # the share of the one chosen scales its input instead (Llama 4)
    shared: GatedMLP | FusedGatedMLP | None = None
    shared_gate: Linear | None = None  # its sigmoid scales the shared MLP
