"""[mlp] and [moe] -> GatedMLP, FusedGatedMLP, PlainMLP or RoutedMLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from spaninfer_engine.spec.maker import Maker
from spaninfer_engine.spec.mlp_nodes import (
    ActivationName,
    EachExpert,
    FusedGatedMLP,
    GatedMLP,
    GateName,
    PlainMLP,
    RoutedMLP,
    Routing,
    StackedExperts,
)
from spaninfer_engine.spec.weight_nodes import Linear, Weight

_FUSED = ("gate_up", "down")
MAX_ALL_EXPERTS = 200_000  # of all layers, each with three names: no config takes minutes to read


class MlpReader:
    """Reads [mlp] and [moe] once and makes the MLP of any layer."""

    def __init__(self, maker: Maker) -> None:
        scope = maker.scope
        self._maker, self._scope = maker, scope
        self._hidden = scope.integer("dims", "hidden")
        self._act = cast(GateName, scope.text("mlp", "act"))
        self._bias = scope.flag("mlp", "bias")
        self._kind = scope.text("mlp", "kind")
        self._fused = scope.flag("mlp", "fused")
        self._up_first = scope.flag("mlp", "up_first")
        self._down_bias = self._bias or scope.flag("mlp", "down_bias")
        if scope.spec.entry("moe", "layers").tree is not None:  # there may be none with experts
            scope.account_for("moe")

    def layer(self, index: int, within: str) -> GatedMLP | FusedGatedMLP | PlainMLP | RoutedMLP:
        """Return the MLP of one layer, whose names begin with `within`."""
        if self._scope.flag("moe", "layers", index):
            return self._routed(within)
        ffn = self._scope.integer("dims", "ffn")
        if self._fused:
            return self._fused_gated([self._maker.name(key, within) for key in _FUSED], ffn)
        if self._kind == "plain":
            return PlainMLP(
                self._rows(self._maker.name("up", within), ffn),
                self._down(self._maker.name("down", within), ffn),
                self._dense_act(),
            )
        return self._gated([self._maker.name(key, within) for key in ("gate", "up", "down")], ffn)

    def _dense_act(self) -> ActivationName:
        if self._act == "clamped_swiglu":
            raise self._scope.error("mlp", "act", "is built for routed experts alone")
        return self._act

    def _gated(self, names: Sequence[str], ffn: int) -> GatedMLP:
        gate, up, down = names
        return GatedMLP(
            self._rows(gate, ffn), self._rows(up, ffn), self._down(down, ffn), self._dense_act()
        )

    def _fused_gated(self, names: Sequence[str], ffn: int) -> FusedGatedMLP:
        gate_up, down = names
        both = self._rows(gate_up, 2 * ffn, (ffn, ffn))
        return FusedGatedMLP(both, self._down(down, ffn), self._dense_act(), self._up_first)

    def _rows(self, name: str, rows: int, parts: tuple[int, ...] = ()) -> Linear:
        return self._maker.linear(name, rows, self._hidden, bias=self._bias, split=0, parts=parts)

    def _down(self, name: str, columns: int) -> Linear:
        return self._maker.linear(name, self._hidden, columns, bias=self._down_bias, split=1)

    def _routed(self, within: str) -> RoutedMLP:
        scope, maker = self._scope, self._maker
        num_experts = scope.integer("moe", "n")
        if num_experts * (layers := scope.integer("dims", "layers")) > MAX_ALL_EXPERTS:
            problem = f"{num_experts:,} experts in {layers:,} layers; at most {MAX_ALL_EXPERTS:,}"
            raise scope.error("moe", "n", problem)
        correction = None
        if scope.flag("moe", "correction"):
            shape = (1, num_experts) if scope.flag("moe", "correction_row") else (num_experts,)
            correction = Weight(maker.name("router_bias", within, suffix=""), shape)
        shared = scope.text("moe", "shared")
        return RoutedMLP(
            router=maker.linear(
                maker.name("router", within),
                num_experts,
                self._hidden,
                bias=scope.flag("moe", "bias"),
            ),
            correction=correction,
            routing=self._routing(num_experts),
            experts=self._experts(within, num_experts),
            act=self._act,
            input_scaled=scope.flag("moe", "input_scaled"),
            shared=self._shared(within) if shared != "none" else None,
            shared_gate=(
                maker.linear(maker.name("shared_gate", within), 1, self._hidden)
                if shared == "gated"
                else None
            ),
        )

    def _routing(self, num_experts: int) -> Routing:
        scope = self._scope
        groups, top_k = scope.integer("moe", "groups"), scope.integer("moe", "top_k")
        group_topk = scope.integer("moe", "group_topk")
        if num_experts % groups:
            raise scope.error("moe", "groups", f"{num_experts} experts do not make {groups} groups")
        if group_topk > groups:
            raise scope.error(
                "moe", "group_topk", f"{group_topk} of {groups} groups cannot be chosen"
            )
        size = num_experts // groups
        score = scope.text("moe", "group_score")
        if groups > 1 and size < 2 and score == "top2":
            problem = f"groups of {size} expert have no two best, whose sum is wanted"
            raise scope.error("moe", "groups", problem)
        if top_k > group_topk * size:
            within = f" in {group_topk} of {groups} groups" if groups > 1 else ""
            problem = f"{top_k} of {group_topk * size} experts{within} cannot be chosen"
            raise scope.error("moe", "top_k", problem)
        return Routing(
            kind=cast(Literal["softmax", "sigmoid"], scope.text("moe", "score")),
            top_k=top_k,
            normalise=scope.flag("moe", "norm_topk"),
            scale=scope.number("moe", "scale"),
            groups=groups,
            group_topk=group_topk,
            group_score=cast(Literal["max", "top2"], score),
        )

    def _experts(self, within: str, num: int) -> EachExpert | StackedExperts:
        ffn = self._scope.integer("moe", "ffn")
        storage = self._storage(within)
        if storage != "each":
            return self._stacked(within, num, ffn, cast(Literal["oi", "io"], storage[-2:]))
        for key in ("expert_bias", "in_turn"):
            if self._scope.flag("moe", key):
                raise self._scope.error("moe", key, "is of stacked experts, and here is each alone")
        prefix = within + self._maker.name("expert")
        prefixes = [prefix.format(e=e) for e in range(num)]
        gate, up, down = (self._maker.name(f"expert_{key}") for key in ("gate", "up", "down"))
        inward, outward = (ffn, self._hidden), (self._hidden, ffn)
        return EachExpert(
            gate=tuple(Weight(f"{prefix}{gate}.weight", inward, 0) for prefix in prefixes),
            up=tuple(Weight(f"{prefix}{up}.weight", inward, 0) for prefix in prefixes),
            down=tuple(Weight(f"{prefix}{down}.weight", outward, 1) for prefix in prefixes),
        )

    def _storage(self, within: str) -> str:
        """Return the layout of the experts: the first of those that the checkpoint has."""
        layouts = self._scope.texts("moe", "experts")
        unknown = [each for each in layouts if each not in ("each", "stacked_oi", "stacked_io")]
        if unknown or not layouts:
            raise self._scope.error("moe", "experts", f"there is no layout {unknown}")
        prefix = within + self._maker.name("expert").format(e=0)
        first = f"{prefix}{self._maker.name('expert_gate')}.weight"
        stack = self._maker.name("experts_gate_up", within, suffix="")
        found = (each for each in layouts if self._maker.has(first if each == "each" else stack))
        return next(found, layouts[0])

    def _stacked(
        self, within: str, num: int, ffn: int, layout: Literal["oi", "io"]
    ) -> StackedExperts:
        names = (
            self._maker.name(f"experts_{key}", within, suffix="")
            for key in ("gate_up", "down", "gate_up_bias", "down_bias")
        )
        gate_up, down, gate_up_bias, down_bias = names
        hidden, turns = self._hidden, self._scope.flag("moe", "in_turn")
        both = () if turns else (ffn, ffn)
        is_biased = self._scope.flag("moe", "expert_bias")
        oi = layout == "oi"
        return StackedExperts(
            gate_up=Weight(
                gate_up,
                (num, 2 * ffn, hidden) if oi else (num, hidden, 2 * ffn),
                1 if oi else 2,
                both,
            ),
            down=Weight(down, (num, hidden, ffn) if oi else (num, ffn, hidden), 2 if oi else 1),
            layout=layout,
            in_turn=turns,
            gate_up_bias=Weight(gate_up_bias, (num, 2 * ffn), 1, both) if is_biased else None,
            down_bias=Weight(down_bias, (num, hidden)) if is_biased else None,
        )

    def _shared(self, within: str) -> GatedMLP | FusedGatedMLP:
        prefix = within + self._maker.name("shared")
        if self._scope.flag("moe", "shared_fused"):
            fused = [prefix + self._maker.name(f"shared_{key}") for key in _FUSED]
            return self._fused_gated(fused, self._scope.integer("moe", "shared_ffn"))
        names = [prefix + self._maker.name(f"expert_{key}") for key in ("gate", "up", "down")]
        return self._gated(names, self._scope.integer("moe", "shared_ffn"))
