"""Consistency of the sizes of linear attention by the gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer_engine.spec.delta_nodes import DeltaAttention, GroupedDelta, SplitDelta
from spaninfer_engine.spec.nodes import CacheGroup
from spaninfer_engine.spec.weight_nodes import Linear


def of_delta(node: DeltaAttention, group: CacheGroup, hidden: int) -> Iterator[str]:
    """Yield a sentence for every size that does not fit what reads it."""
    sizes = node.key_heads, node.value_heads, node.key_size, node.value_size, node.taps - 1
    if min(sizes) < 1 or node.value_heads % node.key_heads:
        yield f"{node.value_heads} states do not share {node.key_heads} keys evenly"
        return
    channels, heads = 2 * node.keys + node.values, node.value_heads
    wanted: list[tuple[Linear, tuple[int, int]]] = [(node.out, (hidden, node.values))]
    match node.projections:
        case SplitDelta(qkv=qkv, z=z, b=b, a=a):
            wanted += [(qkv, (channels, hidden)), (z, (node.values, hidden))]
            wanted += [(b, (heads, hidden)), (a, (heads, hidden))]
        case GroupedDelta(qkvz=qkvz, ba=ba):
            wanted += [(qkvz, (channels + node.values, hidden)), (ba, (2 * heads, hidden))]
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]]
    shapes = [(linear.weight.name, linear.weight.shape, shape) for linear, shape in wanted]
    shapes += [
        (node.conv.name, node.conv.shape, (channels, 1, node.taps)),
        *((each.name, each.shape, (heads,)) for each in (node.a_log, node.dt_bias)),
        (node.norm.weight.name, node.norm.weight.shape, (node.value_size,)),
    ]
    for name, shape, fitting in shapes:
        if shape != fitting:
            yield f"{name} is {list(shape)}, and what reads it takes {list(fitting)}"
    if not node.norm.eps > 0:
        yield f"the eps of the norm of values is {node.norm.eps}; it must lie above 0"
    if group.state != node.state:
        yield f"cache group {group.index} does not hold states of {heads} heads"
