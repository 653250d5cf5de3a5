"""Claims of the CPU backend: one per operator, and fusions that need fewer calls.

Each claim's kernel writes calls down (`script.Recorded`), for values whose places are known
then. Operators that are not here are computed by numpy between scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from spaninfer_engine.backends.cpu import attention, elementwise, experts, heads, linear_attention
from spaninfer_engine.backends.cpu.gemm import EXACT_PRODUCT, PRODUCT, Gemms
from spaninfer_engine.backends.cpu.script import Recorded, Write
from spaninfer_engine.backends.cpu.tuning import GemmTuner
from spaninfer_engine.ops.fuse import can_join
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Claim, Pack


def recorded_claims(
    *,
    rounded: bool,
    narrow: bool,
    tuner: GemmTuner,
    can_join: Callable[[Sequence[Operation]], bool] = can_join,
) -> tuple[Claim, ...]:
    """Return the claims, longest first; `rounded`: GEMMs see activations in bfloat16, `narrow`: so
    rounded or more, and so does the attention of prompts and texts.

    `tuner` chooses the GEMMs' kernels; `can_join` says of projections whether their weights may
    lie below one another.
    """
    gemms = Gemms(PRODUCT, tuner, rounded=rounded, narrow=narrow)
    exact = Gemms(EXACT_PRODUCT, tuner, rounded=False, narrow=False)
    return (
        Claim(
            "gated_linears",
            ("g = linear x", "u = linear x", "y = gate g u"),
            "y",
            gemms.gated,
            lambda operations: can_join(operations[:2]),
        ),
        Claim(
            "joined_linears",
            ("a = linear x", "b = linear x", "c = linear x"),
            "a b c",
            gemms.joined,
            can_join,
        ),
        Claim("joined_linears", ("a = linear x", "b = linear x"), "a b", gemms.joined, can_join),
        Claim("linear_add", ("y = linear x", "z = add r y"), "z", gemms.added),
        Claim("linear_activation", ("y = linear x", "z = activation y"), "z", gemms.activated),
        Claim("linear", ("y = linear x",), "y", gemms.single),
        Claim("head_linear", ("y = head_linear x",), "y", gemms.by_heads),
        Claim("router", ("y = router x",), "y", exact.single),
        Claim("experts", ("y = experts x i s",), "y", partial(experts.experts, rounded=rounded)),
        Claim(
            "convolve_silu",
            ("m = convolve x", "y = activation m"),
            "y",
            linear_attention.convolve_silu,
            lambda operations: operations[1].constant("act") == "silu",
        ),
        _claim("y = attend q", partial(attention.attend, narrow=narrow)),
        _claim("y = attend_ragged q k v", partial(attention.ragged, narrow=narrow)),
        *(_claim(pattern, build) for pattern, build in _SINGLE),
    )


def _claim(pattern: str, build: Callable[[Operation, Pack], Write]) -> Claim:
    outputs, _, call = pattern.rpartition("=")
    name = call.split()[0]
    return Claim(
        name,
        (pattern,),
        outputs.strip(),
        lambda operations, pack: Recorded(build(operations[0], pack)),
    )


_SINGLE: tuple[tuple[str, Callable[[Operation, Pack], Write]], ...] = (
    ("x = embed", elementwise.embed),
    ("x = learned_positions", elementwise.learned_positions),
    ("y = add_types x", elementwise.add_types),
    ("y = gather_rows x", elementwise.gather_rows),
    ("y = rms_norm x", elementwise.rms_norm),
    ("y = layer_norm x", elementwise.layer_norm),
    ("z = add x y", elementwise.add),
    ("y = scale x", elementwise.scale),
    ("y = softcap x", elementwise.softcap),
    ("z = gate x y", elementwise.gate),
    ("y = activation x", elementwise.activation),
    ("y = sigmoid_gate x g", elementwise.sigmoid_gate),
    ("y = scale_rows x f", elementwise.scale_rows),
    ("i s = route x", experts.route),
    ("a b = split x", heads.split),
    ("a b c = split x", heads.split),
    ("z = concat x y", heads.concat),
    ("a b c = split_groups x", heads.split_groups),
    ("y = join_rows x", heads.join_rows),
    ("y = split_heads x", heads.split_heads),
    ("y = merge_heads x", heads.merge_heads),
    ("y = rotate x", heads.rotate),
    ("y = logn x", heads.logn),
    ("y = llama4_scale x", heads.llama4_scale),
    ("append k v", attention.append),
    ("append k", attention.append),
    ("s = select_keys q w", attention.select_keys),
    ("y = attend_selected q s", attention.attend_selected),
    ("y = convolve x", linear_attention.convolve),
    ("g r = delta_gates a b", linear_attention.delta_gates),
    ("y = delta_rule q k v g r", linear_attention.delta_rule),
)
