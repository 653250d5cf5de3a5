"""[delta] -> the layers of linear attention by the gated delta rule."""

from __future__ import annotations

from dataclasses import replace

from spaninfer_engine.spec.cache_groups import Groups, Kept
from spaninfer_engine.spec.delta_nodes import DeltaAttention, GroupedDelta, SplitDelta
from spaninfer_engine.spec.maker import Maker
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight


class DeltaReader:
    """Reads [delta] once and makes the linear attention of any layer that has it."""

    def __init__(self, maker: Maker) -> None:
        self._maker, self._scope = maker, maker.scope
        if self._scope.spec.entry("delta", "layers").tree is not None:  # there may be none
            self._scope.account_for("delta")

    def has(self, index: int) -> bool:
        """Return True if this layer attends by the gated delta rule."""
        return self._scope.flag("delta", "layers", index)

    def layer(self, index: int, within: str, groups: Groups) -> DeltaAttention:
        """Return the attention of one layer, whose names begin with `within`."""
        scope, maker = self._scope, self._maker
        if scope.text("mlp", "act") != "silu":
            raise scope.error("mlp", "act", "layers of the delta rule are built with silu alone")
        key_heads, value_heads = (scope.integer("delta", each) for each in ("k_heads", "v_heads"))
        if value_heads % key_heads:
            problem = f"{value_heads} value heads are no multiple of {key_heads} key heads"
            raise scope.error("delta", "k_heads", problem)
        taps = scope.integer("delta", "taps")
        key_size, value_size = (scope.integer("delta", each) for each in ("k_dim", "v_dim"))
        keys, values = key_heads * key_size, value_heads * value_size
        norm = maker.norm(maker.name("delta_norm", within), value_size, "rms")
        if norm is None:
            raise scope.error("delta", "layers", "[weights] delta_norm must have a name")
        node = DeltaAttention(
            key_heads=key_heads,
            value_heads=value_heads,
            key_size=key_size,
            value_size=value_size,
            projections=self._projections(within, keys, values, value_heads),
            conv=Weight(f"{maker.name('delta_conv', within)}.weight", (2 * keys + values, 1, taps)),
            a_log=self._per_head("delta_a_log", within, value_heads),
            dt_bias=self._per_head("delta_dt_bias", within, value_heads),
            norm=_plain(norm),
            out=maker.linear(
                maker.name("delta_o", within), scope.integer("dims", "hidden"), values
            ),
            group=0,
        )
        return replace(node, group=groups.join(Kept(0, 0, 0, state=node.state), index))

    def _projections(
        self, within: str, keys: int, values: int, heads: int
    ) -> SplitDelta | GroupedDelta:
        if self._scope.text("delta", "projections") == "grouped":
            return GroupedDelta(
                self._rows(within, "delta_qkvz", 2 * keys + 2 * values),
                self._rows(within, "delta_ba", 2 * heads),
            )
        return SplitDelta(
            self._rows(within, "delta_qkv", 2 * keys + values),
            self._rows(within, "delta_z", values),
            self._rows(within, "delta_b", heads),
            self._rows(within, "delta_a", heads),
        )

    def _rows(self, within: str, key: str, rows: int) -> Linear:
        hidden = self._scope.integer("dims", "hidden")
        return self._maker.linear(self._maker.name(key, within), rows, hidden)

    def _per_head(self, key: str, within: str, heads: int) -> Weight:
        return Weight(self._maker.name(key, within, suffix=""), (heads,))


def _plain(norm: Norm) -> Norm:
    """Return the norm with a weight that counts from zero, whatever other norms do."""
    return replace(norm, plus_one=False)
