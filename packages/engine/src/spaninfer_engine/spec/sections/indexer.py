"""[attn] index_topk -> the indexers of sparse attention."""

from __future__ import annotations

from typing import cast

from spaninfer_engine.spec.attention_nodes import Indexer, RopeStyle, SharedIndexer
from spaninfer_engine.spec.cache_groups import Groups, Kept
from spaninfer_engine.spec.maker import Maker


class IndexerReader:
    """Reads what [attn] says of indexers, and makes that of any layer."""

    def __init__(self, maker: Maker, hidden: int) -> None:
        self._maker, self._scope, self._hidden = maker, maker.scope, hidden
        self._top_k = maker.scope.optional_integer("attn", "index_topk")
        self._layers = 0  # with an indexer of their own, so far

    def layer(self, index: int, within: str, groups: Groups) -> Indexer | SharedIndexer | None:
        """Return the indexer of one layer, whose names begin with `within`; None: all keys are
        read.
        """
        if self._top_k is None:
            return None
        if self._scope.flag("attn", "index_layers", index):
            self._layers += 1
            return self._indexer(index, within, groups, self._top_k)
        if not self._layers:
            problem = f"layer {index} has no indexer, nor has one before it"
            raise self._scope.error("attn", "index_layers", problem)
        return SharedIndexer()

    def _indexer(self, index: int, within: str, groups: Groups, top_k: int) -> Indexer:
        scope, maker = self._scope, self._maker
        heads, dim = scope.integer("dims", "index_heads"), scope.integer("dims", "index_dim")
        rotated, low = scope.integer("dims", "qk_rope"), scope.optional_integer("dims", "q_lora")
        if low is None:
            problem = "an indexer's queries come from the latent of queries, and there is none"
            raise scope.error("dims", "q_lora", problem)
        if dim < rotated:
            problem = f"{rotated} of {dim} channels of an indexer's head cannot be rotated"
            raise scope.error("dims", "index_dim", problem)
        eps = scope.number("norm", "index_eps")
        norm = maker.norm(maker.name("index_k_norm", within), dim, "layer", eps, bias=True)
        if norm is None:
            raise scope.error("attn", "index_topk", "[weights] index_k_norm must have a name")
        return Indexer(
            heads=heads,
            dim=dim,
            top_k=top_k,
            q=maker.linear(maker.name("index_q", within), heads * dim, low),
            k=maker.linear(maker.name("index_k", within), dim, self._hidden),
            k_norm=norm,
            weights=maker.linear(maker.name("index_weights", within), heads, self._hidden),
            style=cast(RopeStyle, scope.text("attn", "index_style")),
            group=groups.join(Kept(1, dim, dim, values_in_keys=True), index),
        )
