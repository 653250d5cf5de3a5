"""[attn] pos = "relative" -> the table of biases by distance."""

from __future__ import annotations

from spaninfer_engine.spec.attention_nodes import RelativeBias
from spaninfer_engine.spec.maker import Maker
from spaninfer_engine.spec.weight_nodes import Weight


def relative_bias(maker: Maker) -> RelativeBias:
    """Return the table that all layers share. Raises SpecError for buckets that tell nothing.

    Half of the buckets are of keys behind the query, and half of these of one distance each.
    """
    scope = maker.scope
    buckets, far = scope.integer("attn", "rel_buckets"), scope.integer("attn", "rel_distance")
    if buckets % 4:
        problem = f"{buckets} buckets are no multiple of 4: two directions, near and far in each"
        raise scope.error("attn", "rel_buckets", problem)
    if far <= buckets // 4:
        problem = f"the first {buckets // 4} buckets reach as far; give a longer distance"
        raise scope.error("attn", "rel_distance", problem)
    name = maker.name("rel_bias", maker.prefix)
    if not name:
        raise scope.error("attn", "pos", "relative needs a table: [weights] rel_bias is its name")
    table = Weight(f"{name}.weight", (buckets, scope.integer("dims", "heads")), 1)
    return RelativeBias(table, far)
