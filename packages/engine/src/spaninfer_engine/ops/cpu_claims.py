"""What the CPU backend records: a claim per operator, and for those that become fewer calls.

Each claim's kernel writes calls down (`cpu_script.Recorded`), for values whose places are known
then. Operators that are not here are computed by numpy between scripts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spaninfer_engine.ops import cpu_attention, cpu_experts, cpu_heads, cpu_rows
from spaninfer_engine.ops.cpu_products import EXACT_PRODUCT, PRODUCT, Products
from spaninfer_engine.ops.cpu_script import Recorded, Write
from spaninfer_engine.ops.fuse import can_join
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Claim, Pack


def recorded_claims(*, rounded: bool) -> tuple[Claim, ...]:
    """Return the claims, longest first; `rounded`: products see activations in bfloat16."""
    products = Products(PRODUCT, rounded)
    exact = Products(EXACT_PRODUCT, False)
    return (
        Claim(
            "gated_linears",
            ("g = linear x", "u = linear x", "y = gate g u"),
            "y",
            products.gated,
            lambda operations: can_join(operations[:2]),
        ),
        Claim(
            "joined_linears",
            ("a = linear x", "b = linear x", "c = linear x"),
            "a b c",
            products.joined,
            can_join,
        ),
        Claim("joined_linears", ("a = linear x", "b = linear x"), "a b", products.joined, can_join),
        Claim("linear_add", ("y = linear x", "z = add r y"), "z", products.added),
        Claim("linear", ("y = linear x",), "y", products.single),
        Claim("head_linear", ("y = head_linear x",), "y", products.by_heads),
        Claim("router", ("y = router x",), "y", exact.single),
        Claim(
            "experts", ("y = experts x i s",), "y", partial(cpu_experts.experts, rounded=rounded)
        ),
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
    ("x = embed", cpu_rows.embed),
    ("x = learned_positions", cpu_rows.learned_positions),
    ("y = take_rows x", cpu_rows.take_rows),
    ("y = rms_norm x", cpu_rows.rms_norm),
    ("y = layer_norm x", cpu_rows.layer_norm),
    ("z = add x y", cpu_rows.add),
    ("y = scale x", cpu_rows.scale),
    ("y = softcap x", cpu_rows.softcap),
    ("z = gate x y", cpu_rows.gate),
    ("y = activation x", cpu_rows.activation),
    ("y = sigmoid_gate x g", cpu_rows.sigmoid_gate),
    ("i s = route x", cpu_experts.route),
    ("a b = split x", cpu_heads.split),
    ("a b c = split x", cpu_heads.split),
    ("z = concat x y", cpu_heads.concat),
    ("a b c = split_groups x", cpu_heads.split_groups),
    ("y = split_heads x", cpu_heads.split_heads),
    ("y = merge_heads x", cpu_heads.merge_heads),
    ("y = rotate x", cpu_heads.rotate),
    ("y = logn x", cpu_heads.logn),
    ("append k v", cpu_attention.append),
    ("append k", cpu_attention.append),
    ("y = attend q", cpu_attention.attend),
)
