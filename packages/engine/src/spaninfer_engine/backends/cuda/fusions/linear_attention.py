"""Linear attention by the gated delta rule on the GPU: twelve operators in three launches.

The kernels find a slice's states through the span tables, as attention finds its keys, so that a
captured step serves any sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from spaninfer_kernels_cuda import delta_rule
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.plan import Plan
from spaninfer_engine.backends.cuda.fusions.attention import Backend
from spaninfer_engine.backends.cuda.kernels.heads import dense_rows
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.step import Step
from spaninfer_engine.ops.table import Claim, Kernel, Pack
from spaninfer_engine.spec.nodes import CacheGroup

NAME = "linear_attention"
_TAPS = (2, 4)


def claims_of_linear_attention(ops: Backend) -> Iterator[Claim]:
    """Yield the claims of what lies between the projections: the rule over states, with the
    convolution and the gates before it, and the gated norm, which a last layer computes for the
    rows with logits alone.
    """
    yield Claim(
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
        ),
        "o",
        lambda taken, pack: _rule(ops, taken, pack),
        lambda taken: taken[1].constant("act") == "silu",
    )
    yield Claim(
        "gated_norm",
        ("n = rms_norm o", "w = split_heads z", "y = gate w n", "r = merge_heads y"),
        "r",
        lambda taken, pack: _gated_norm(ops, taken[0], pack),
        lambda taken: taken[2].constant("act") == "silu",
    )


def _rule(ops: Backend, taken: Sequence[Operation], pack: Pack) -> Kernel:
    convolution, gates, rule = taken[0], taken[6], taken[7]
    taps = _packed(ops, convolution, "weight", pack)
    decays = _packed(ops, gates, "a_log", pack), _packed(ops, gates, "dt_bias", pack)
    group, layer = (int(str(rule.constant(name))) for name in ("group", "layer"))
    kernels = ops.kernels

    def kernel(step: Step[Tensor], x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        plan: Plan = step.attention
        inputs, states = (part[layer] for part in plan.caches[group][:2])
        slices, stream = _slices(plan, group), kernels.stream
        _, heads, _, size = states.shape
        mixed, read = kernels.empty(*x.shape), kernels.empty(len(x), heads, size)
        delta_rule.convolve(x, taps, inputs, slices, out=mixed, stream=stream)
        delta_rule.delta_rule(mixed, (a, b), decays, states, slices, out=read, stream=stream)
        return read

    return kernel


def _gated_norm(ops: Backend, norm: Operation, pack: Pack) -> Kernel:
    weight, kernels = _packed(ops, norm, "weight", pack), ops.kernels
    eps, plus_one = norm.number("eps"), bool(norm.constant("plus_one"))

    def kernel(_step: Step[Tensor], read: Tensor, z: Tensor) -> Tensor:
        read = read.contiguous()
        out, gate = torch.empty_like(read), dense_rows(z.view(read.shape))  # z: part of a row
        delta_rule.gated_rms_norm(
            read, gate, weight, eps=eps, plus_one=plus_one, out=out, stream=kernels.stream
        )
        return out.flatten(1)

    return kernel


def _packed(ops: Backend, operation: Operation, argument: str, pack: Pack) -> Any:
    return pack([use_of(operation, argument)], ops.layout(operation.operator, argument))


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
        odd = state.key_size % 2 or state.value_size % 2
        if odd or state.key_size > delta_rule.MAX_KEY_SIZE or state.inputs + 1 not in _TAPS:
            raise ConfigError(
                f"layers of this model keep states of {state.key_size} x {state.value_size} behind "
                f"a convolution of {state.inputs + 1} taps; the kernels of backend cuda take even "
                f"numbers, keys of at most {delta_rule.MAX_KEY_SIZE} channels and 2 or 4 taps; "
                "choose --backend torch"
            )
        if capability < (8, 0):
            raise ConfigError(
                "layers of this model keep states by the gated delta rule, whose kernels need "
                f"compute capability 8.0, and the GPU has {capability[0]}.{capability[1]}; choose "
                "--backend torch"
            )
