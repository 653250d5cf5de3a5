"""Linear attention by the gated delta rule on the GPU: twelve operators in three launches.

The kernels find a slice's states through the span tables, as attention finds its keys, so that a
captured step serves any sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spaninfer_kernels_cuda import delta_rule
from torch import Tensor

from spaninfer_engine.backends.cuda.attention import Plan
from spaninfer_engine.backends.cuda.fusions_attention import Backend
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack
from spaninfer_engine.spec.nodes import CacheGroup

NAME = "delta_rule"
_TAPS = (2, 4)


def claim_linear_attention(ops: Backend) -> Claim:
    """Claim everything between the projections: convolution, gates, the rule and its norm."""
    return Claim(
        NAME,
        (
            "m = convolve x",
            "s = activation m",
            "q k v = split s",
            "e = split_heads q",
            "f = split_heads k",
            "h = split_heads v",
            "g t = delta_gates a b",
            "o = delta_rule e f h g t",
            "n = rms_norm o",
            "w = split_heads z",
            "y = gate w n",
            "r = merge_heads y",
        ),
        "r",
        lambda taken, pack: _build(ops, taken, pack),
        lambda taken: taken[1].constant("act") == taken[10].constant("act") == "silu",
    )


def _build(ops: Backend, taken: Sequence[Operation], pack: Pack) -> Kernel:
    convolution, _, _, *_, gates, rule, norm, _, _, _ = taken

    def packed(operation: Operation, argument: str) -> Any:
        layout = ops.layout(operation.operator, argument)
        return pack([use_of(operation, argument)], layout)

    taps = packed(convolution, "weight")
    decays = packed(gates, "a_log"), packed(gates, "dt_bias")
    weight, eps = packed(norm, "weight"), norm.number("eps")
    plus_one = bool(norm.constant("plus_one"))
    group, layer = (int(str(rule.constant(name))) for name in ("group", "layer"))
    kernels = ops.kernels

    def kernel(step: Step[Tensor], x: Tensor, a: Tensor, b: Tensor, z: Tensor) -> Tensor:
        plan: Plan = step.attention
        inputs, states = (part[layer] for part in plan.caches[group][:2])
        slices, stream = _slices(plan, group), kernels.stream
        rows, (_, heads, _, size) = len(x), states.shape
        mixed, read = kernels.empty(*x.shape), kernels.empty(rows, heads, size)
        delta_rule.convolve(x, taps, inputs, slices, out=mixed, stream=stream)
        delta_rule.delta_rule(mixed, (a, b), decays, states, slices, out=read, stream=stream)
        gate = z.view(rows, heads, size)
        delta_rule.gated_rms_norm(
            read, gate, weight, eps=eps, plus_one=plus_one, out=read, stream=stream
        )
        return read.view(rows, heads * size)

    return kernel


def _slices(plan: Plan, group: int) -> delta_rule.Slices:
    slices = plan.slices
    return delta_rule.Slices(
        slices.rows,
        slices.lengths,
        slices.bounds,
        slices.tables[group],
        slices.span_len,
        slices.num_decodes,
    )


def refuse_states(groups: Iterable[CacheGroup], capability: tuple[int, int]) -> None:
    """Raise ConfigError for states that the kernels do not take, or not on this GPU."""
    for group in groups:
        state = group.state
        if state is None:
            continue
        odd = state.key_dim % 2 or state.value_dim % 2
        if odd or state.key_dim > delta_rule.MAX_KEY_DIM or state.inputs + 1 not in _TAPS:
            raise ConfigError(
                f"layers of this model keep states of {state.key_dim} x {state.value_dim} behind a "
                f"convolution of {state.inputs + 1} taps; the kernels of backend cuda take even "
                f"numbers, keys of at most {delta_rule.MAX_KEY_DIM} channels and 2 or 4 taps; "
                "choose --backend torch"
            )
        if capability < (8, 0):
            raise ConfigError(
                "layers of this model keep states by the gated delta rule, whose kernels need "
                f"compute capability 8.0, and the GPU has {capability[0]}.{capability[1]}; choose "
                "--backend torch"
            )
