"""Lowering: the nodes of a spec become a program of operators.

One function, one match; a new node is a new arm. Nothing here knows a backend, a tensor or a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spaninfer_engine.ops.bound import Result
from spaninfer_engine.ops.operation import (
    ByDistance,
    Constant,
    GroupedRows,
    HeadRows,
    OneAxis,
    Operation,
    TakenApart,
    Transposed,
    UnitRows,
    Use,
)
from spaninfer_engine.program.lower_delta import lower_delta
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.delta_nodes import DeltaAttention
from spaninfer_engine.spec.nodes import (
    Alibi,
    Attention,
    AxialRope,
    CacheGroup,
    Decoder,
    EachExpert,
    Embedding,
    Encoder,
    FusedGatedMLP,
    FusedQkv,
    GatedMLP,
    Head,
    HeadNorms,
    Heads,
    Indexer,
    Layer,
    Learned,
    Linear,
    LowRank,
    MlaAttention,
    Model,
    Norm,
    Ones,
    PlainMLP,
    Pool,
    RaggedAttention,
    RelativeBias,
    Rope,
    RopeStyle,
    RoutedMLP,
    Scores,
    Sinusoidal,
    SplitQkv,
    StackedExperts,
    Weight,
    ropes,
)


def lower(model: Model) -> Program:
    """Return the program that computes the logits of a step's rows with logits, or a vector per
    text; what a classifier makes of vectors is no part of it (`run.pooling_head`).
    """
    lowering = Lowering(ropes(model), model.groups)
    x = lowering.node(model.embedding)
    for index, layer in enumerate(model.layers):
        lowering.layer = index
        x = lowering.node(layer, x)
        x = lowering.add("add_rows", x, name="x", layer=index)
    lowering.layer = None
    match model:
        case Decoder(norm=norm, head=head):
            x = lowering.add("gather_rows", x, name="rows")
            result, returns = lowering.node(head, lowering.norm(norm, x)), Result.LOGITS
        case Encoder(norm=norm, pool=pool):
            result, returns = lowering.node(pool, lowering.norm(norm, x)), Result.VECTORS
    return Program(tuple(lowering.operations), result, ropes(model), model.groups, returns)


class Lowering:
    """Operations so far; values are named after what they hold, numbered in order.

    `ropes` and `groups` are what constants of rotations and attentions count in.
    """

    def __init__(self, ropes: Sequence[Rope | AxialRope], groups: Sequence[CacheGroup]) -> None:
        self.operations: list[Operation] = []
        self.layer: int | None = None
        self._ropes, self._groups = ropes, groups
        self._counts: dict[str, int] = {}
        self._selected = ""  # what the last indexer so far has selected

    # ---- writing operations ----------------------------------------------------------------------

    def add(
        self,
        operator: str,
        *inputs: str,
        name: str,
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> str:
        """Append an operation with one output; return the output."""
        return self.add_many(operator, *inputs, names=(name,), uses=uses, **constants)[0]

    def add_many(
        self,
        operator: str,
        *inputs: str,
        names: tuple[str, ...],
        uses: tuple[Use, ...] = (),
        **constants: Constant,
    ) -> tuple[str, ...]:
        """Append an operation; return its outputs."""
        outputs = tuple(self._fresh(name) for name in names)
        self.operations.append(
            Operation(operator, inputs, outputs, uses, tuple(constants.items()), self.layer)
        )
        return outputs

    def _fresh(self, name: str) -> str:
        number = self._counts[name] = self._counts.get(name, -1) + 1
        return f"{name}.{number}"

    # ---- what nodes compute ----------------------------------------------------------------------

    def node(self, node: object, x: str = "") -> str:
        """Append what `node` computes of x; return its value."""
        match node:
            case Embedding():
                return self._embedding(node)
            case Layer(parallel=True):
                return self._parallel_layer(node, x)
            case Layer():
                return self._layer(node, x)
            case Attention():
                return self._attention(node, x)
            case MlaAttention():
                return self._latent_attention(node, x)
            case DeltaAttention():
                return lower_delta(self, node, x, self._place(node.group))
            case RaggedAttention():
                return self._ragged_attention(node, x)
            case GatedMLP(gate=gate, up=up, down=down, act=act):
                opened, raised = self.linear(gate, x, "gate"), self.linear(up, x, "up")
                return self._gated(opened, raised, down, act)
            case FusedGatedMLP(gate_up=gate_up, down=down, act=act, up_first=up_first):
                inner = gate_up.weight.shape[0] // 2
                both = self.linear(gate_up, x, "gate_up")
                sizes = (inner, inner)
                names = ("up", "gate") if up_first else ("gate", "up")
                opened, raised = self.add_many("split", both, names=names, sizes=sizes)
                if up_first:
                    opened, raised = raised, opened
                return self._gated(opened, raised, down, act)
            case PlainMLP(up=up, down=down, act=act):
                raised = self.linear(up, x, "up")
                return self.linear(
                    down, self.add("activation", raised, name="inner", act=act), "mlp"
                )
            case RoutedMLP():
                return self._routed_mlp(node, x)
            case Head():
                return self._head(node, x)
            case Pool(kinds=kinds):
                return self.add("pool", x, name="vectors", kinds=kinds)
            case Linear():
                return self.linear(node, x, "y")
            case _:
                raise AssertionError(f"{type(node).__name__} has no arm in lower()")

    def linear(self, linear: Linear, x: str, name: str) -> str:
        """Append x @ weight.T + bias."""
        uses = _affine(linear.weight, linear.bias)
        if linear.transposed:
            uses = (replace(uses[0], view=Transposed()), *uses[1:])
        return self.add("linear", x, name=name, uses=uses)

    def norm(self, norm: Norm | None, x: str) -> str:
        """Append a norm; without one, x stays as it is."""
        if norm is None:
            return x
        uses = _affine(norm.weight, norm.bias)
        if norm.kind == "layer":
            return self.add("layer_norm", x, name="norm", uses=uses, eps=norm.eps)
        return self.add("rms_norm", x, name="norm", uses=uses, eps=norm.eps, plus_one=norm.plus_one)

    def _gated(self, gate: str, up: str, down: Linear, act: str) -> str:
        return self.linear(down, self.add("gate", gate, up, name="inner", act=act), "mlp")

    def _embedding(self, node: Embedding) -> str:
        x = self.add("embed", name="x", uses=(Use("table", (node.table,)),), scale=node.scale)
        x = self.add("replace_rows", x, name="x")
        if node.project is not None:
            x = self.linear(node.project, x, "x")
        match node.positions:
            case Learned(table=table, offset=offset):
                uses = (Use("table", (table,)),)
                places = self.add("learned_positions", name="places", uses=uses, offset=offset)
                x = self.add("add", x, places, name="x", scale=1.0)
            case Sinusoidal(dim=dim, offset=offset):
                places = self.add("sinusoidal_positions", name="places", dim=dim, offset=offset)
                x = self.add("add", x, places, name="x", scale=1.0)
        if node.types is not None:
            uses = (Use("table", (node.types,)),)
            x = self.add("add_types", x, name="x", uses=uses)
        return self.norm(node.norm, x)

    def _layer(self, node: Layer, x: str) -> str:
        norms = node.norms
        y = self.node(node.attention, self.norm(norms.attention_pre, x))
        y = self.norm(norms.attention_post, y)
        x = self.add("add", x, y, name="x", scale=node.residual_scale)
        x = self.norm(norms.attention_after, x)
        y = self.node(node.mlp, self.norm(norms.mlp_pre, x))
        y = self.norm(norms.mlp_post, y)
        x = self.add("add", x, y, name="x", scale=node.residual_scale)
        return self.norm(norms.mlp_after, x)

    def _parallel_layer(self, node: Layer, x: str) -> str:
        norms = node.norms
        attention_in = self.norm(norms.attention_pre, x)
        mlp_in = attention_in if norms.mlp_pre is None else self.norm(norms.mlp_pre, x)
        attention = self.norm(norms.attention_post, self.node(node.attention, attention_in))
        mlp = self.norm(norms.mlp_post, self.node(node.mlp, mlp_in))
        both = self.add("add", attention, mlp, name="both", scale=1.0)
        return self.add("add", x, both, name="x", scale=node.residual_scale)

    # ---- attention -------------------------------------------------------------------------------

    def _attention(self, node: Attention, x: str) -> str:
        q, k, v = self._placed(node, x)
        if node.logn_base is not None:
            q = self.add("logn", q, name="q", base=node.logn_base)
        if (growth := node.llama4_scale) is not None:
            q = self.add(
                "llama4_scale",
                q,
                name="q",
                beta=growth.beta,
                length=growth.length,
                offset=growth.offset,
            )
        place = self._place(node.group)
        self.add_many("append", k, v, names=(), group=node.group, layer=place)
        read = self.add(
            "attend",
            q,
            name="read",
            uses=() if node.sinks is None else (Use("sinks", (node.sinks,)),),
            group=node.group,
            layer=place,
            scale=node.scale,
            softcap=node.softcap,
            window=node.window,
            chunked=node.chunked,
            alibi=_alibi(node.positions),
        )
        read = self.add("merge_heads", read, name="read")
        if isinstance(node.qkv, SplitQkv) and node.gated:
            gate = self._part_of_heads(node.qkv.q, node.heads, 1, x, "gate")
            read = self.add("sigmoid_gate", read, gate, name="read")
        return self.linear(node.out, read, "attention")

    def _part_of_heads(self, q: Linear, heads: Heads, part: int, x: str, name: str) -> str:
        """Return the queries of a projection to [q, gate] per head, or the gates."""
        use = Use("weight", (q.weight,), view=GroupedRows((heads.dim, heads.dim), (part,)))
        return self.add("linear", x, name=name, uses=(use,))

    def _ragged_attention(self, node: RaggedAttention, x: str) -> str:
        read = self.add(
            "attend_ragged",
            *self._placed(node, x),
            name="read",
            uses=_position_bias(node.positions),
            scale=node.scale,
            softcap=node.softcap,
            window=node.window,
            ahead=node.ahead,
            in_windows=node.in_windows,
        )
        return self.linear(node.out, self.add("merge_heads", read, name="read"), "attention")

    def _placed(self, node: Attention | RaggedAttention, x: str) -> tuple[str, str, str]:
        """Return queries, keys and values, the first two normed and rotated."""
        q, k, v = self._query_key_value(node, x)
        norms = node.norms
        if norms is not None and not norms.behind:
            q, k = self._head_norms(norms, q, k, node.heads)
        if isinstance(node.positions, Rope | AxialRope):
            q, k = self._rotate(node.positions, q), self._rotate(node.positions, k)
        if norms is not None and norms.behind:
            q, k = self._head_norms(norms, q, k, node.heads)
        return q, k, v

    def _head_norms(self, norms: HeadNorms, q: str, k: str, heads: Heads) -> tuple[str, str]:
        if not norms.joint:
            return self.norm(norms.q, q), self.norm(norms.k, k)
        q = self.norm(norms.q, self.add("merge_heads", q, name="q"))
        k = self.norm(norms.k, self.add("merge_heads", k, name="k"))
        return (
            self.add("split_heads", q, name="q", heads=heads.query),
            self.add("split_heads", k, name="k", heads=heads.kv),
        )

    def _query_key_value(self, node: Attention | RaggedAttention, x: str) -> tuple[str, ...]:
        heads = node.heads
        match node.qkv:
            case SplitQkv(q=q, k=k, v=v) if isinstance(node, Attention) and node.gated:
                queries = self._part_of_heads(q, heads, 0, x, "q")
                flat = queries, self.linear(k, x, "k"), self.linear(v, x, "v")
            case SplitQkv(q=q, k=k, v=v):
                flat = self.linear(q, x, "q"), self.linear(k, x, "k"), self.linear(v, x, "v")
            case FusedQkv(linear=linear, layout="concat"):
                sizes = tuple(count * heads.dim for count in (heads.query, heads.kv, heads.kv))
                both = self.linear(linear, x, "qkv")
                q_, k_, v_ = self.add_many("split", both, names=("q", "k", "v"), sizes=sizes)
                flat = q_, k_, v_
            case FusedQkv(linear=linear):
                both = self.linear(linear, x, "qkv")
                return self.add_many(
                    "split_groups",
                    both,
                    names=("q", "k", "v"),
                    heads=heads.query,
                    kv_heads=heads.kv,
                )
        counts = (heads.query, heads.kv, heads.kv)
        return tuple(
            self.add("split_heads", value, name=name, heads=count)
            for value, name, count in zip(flat, "qkv", counts, strict=True)
        )

    def _latent_attention(self, node: MlaAttention, x: str) -> str:
        """Attention over latents: the up-projections of keys and values move to the query's side.

        q_nope.(W_uk latent) = (W_uk^T q_nope).latent, so all heads read one cached latent, and
        W_uv is applied to what they read (DeepSeek-V2, 2024, section 2.1).
        """
        low, up = x, node.q
        if isinstance(up, LowRank):
            low, up = self.norm(up.norm, self.linear(up.down, x, "low")), up.up
        q = self.add("split_heads", self.linear(up, low, "y"), name="q", heads=node.heads)
        q_nope, q_rope = self.add_many(
            "split", q, names=("q_nope", "q_rope"), sizes=(node.nope, node.rotated)
        )
        q_latent = self.add("head_linear", q_nope, name="q_latent", uses=(_key_up(node),))
        q = self.add("concat", q_latent, self._rotate(node.rope, q_rope), name="q")
        down = self.linear(node.kv_down, x, "kv")
        latent, k_rope = self.add_many(
            "split", down, names=("latent", "k_rope"), sizes=(node.latent, node.rotated)
        )
        latent = self.add("split_heads", self.norm(node.kv_norm, latent), name="latent", heads=1)
        k_rope = self.add("split_heads", k_rope, name="k_rope", heads=1)
        k = self.add("concat", latent, self._rotate(node.rope, k_rope), name="k")
        place = self._place(node.group)
        self.add_many("append", k, names=(), group=node.group, layer=place)
        operator, read_by = "attend", [q]
        if isinstance(node.indexer, Indexer):
            self._selected = self._select(node.indexer, low, x, node.rope)
        if node.indexer is not None:
            operator, read_by = "attend_selected", [q, self._selected]
        read = self.add(
            operator, *read_by, name="read", group=node.group, layer=place, scale=node.scale
        )
        read = self.add("head_linear", read, name="read", uses=(_value_up(node),))
        return self.linear(node.out, self.add("merge_heads", read, name="read"), "attention")

    def _select(self, node: Indexer, low: str, x: str, rope: Rope) -> str:
        """Return the positions of the keys that each token reads."""
        q = self.add("split_heads", self.linear(node.q, low, "y"), name="q", heads=node.heads)
        k = self.norm(node.k_norm, self.linear(node.k, x, "k"))
        k = self.add("split_heads", k, name="k", heads=1)
        q, k = (self._rotate(rope, each, node.style) for each in (q, k))
        group, place = node.group, self._place(node.group)
        self.add_many("append", k, names=(), group=group, layer=place)
        uses = _affine(node.weights.weight, node.weights.bias)
        weights = self.add("router", x, name="weights", uses=uses)  # as exact: a choice hangs on it
        return self.add(
            *("select_keys", q, weights),
            name="selected",
            group=group,
            layer=place,
            top_k=node.top_k,
        )

    def _rotate(self, rope: Rope | AxialRope, x: str, style: RopeStyle | None = None) -> str:
        index = self._ropes.index(rope)
        return self.add("rotate", x, name="rotated", rope=index, style=style or rope.style)

    def _place(self, group: int) -> int:
        """Return the number of the present layer in its cache group."""
        assert self.layer is not None
        return self._groups[group].layers.index(self.layer)

    # ---- experts and head ------------------------------------------------------------------------

    def _routed_mlp(self, node: RoutedMLP, x: str) -> str:
        router = _affine(node.router.weight, node.router.bias)
        logits = self.add("router", x, name="routing", uses=router)
        chosen, taken = self._route(node, logits, node.scores), x
        if node.input_scaled:
            taken = self.add("scale_rows", x, chosen[1], name="scaled")
            one = replace(node.scores, normalise=True)  # of one expert that is a share of 1
            chosen = self._route(node, logits, one)
        y = self._experts(node, taken, chosen)
        if node.shared is None:
            return y
        shared = self.node(node.shared, x)
        if node.shared_gate is not None:
            gate = self.linear(node.shared_gate, x, "gate")
            shared = self.add("sigmoid_gate", shared, gate, name="mlp")
        return self.add("add", y, shared, name="mlp", scale=1.0)

    def _route(self, node: RoutedMLP, logits: str, scores: Scores) -> tuple[str, ...]:
        uses = () if node.correction is None else (_correction(node.correction),)
        return self.add_many(
            "route",
            logits,
            names=("ids", "shares"),
            uses=uses,
            kind=scores.kind,
            top_k=scores.top_k,
            normalise=scores.normalise,
            scale=scores.scale,
            groups=scores.groups,
            group_topk=scores.group_topk,
            group_score=scores.group_score,
        )

    def _experts(self, node: RoutedMLP, x: str, chosen: tuple[str, ...]) -> str:
        match node.experts:
            case EachExpert(gate=gate, up=up, down=down):
                layout = "oi"
                uses = tuple(
                    Use(argument, tensors, stacked=True)
                    for argument, tensors in (("gate", gate), ("up", up), ("down", down))
                )
            case StackedExperts(layout=layout):
                uses = _stacked(node.experts)
        return self.add("experts", x, *chosen, name="mlp", uses=uses, act=node.act, layout=layout)

    def _head(self, node: Head, x: str) -> str:
        if node.project is not None:
            x = self.linear(node.project, x, "rows")
        view = UnitRows() if node.normalise else None
        weight = Use("weight", (node.linear.weight,), view=view)
        uses = (weight, *_affine(node.linear.weight, node.linear.bias)[1:])
        logits = self.add("linear", x, name="logits", uses=uses)
        if node.scale != 1.0:
            logits = self.add("scale", logits, name="logits", factor=node.scale)
        if node.softcap is not None:
            logits = self.add("softcap", logits, name="logits", cap=node.softcap)
        return logits


def _affine(weight: Weight | Ones, bias: Weight | None) -> tuple[Use, ...]:
    uses = (Use("weight", (weight,)),)
    return uses if bias is None else (*uses, Use("bias", (bias,)))


def _stacked(experts: StackedExperts) -> tuple[Use, ...]:
    axis = 1 if experts.layout == "oi" else 2
    rows, numbers = (TakenApart(a) if experts.in_turn else None for a in (axis, 1))
    uses = [Use("gate_up", (experts.gate_up,), view=rows), Use("down", (experts.down,))]
    if experts.gate_up_bias is not None:
        uses.append(Use("gate_up_bias", (experts.gate_up_bias,), view=numbers))
    if experts.down_bias is not None:
        uses.append(Use("down_bias", (experts.down_bias,)))
    return tuple(uses)


def _correction(weight: Weight) -> Use:
    return Use("correction", (weight,), view=OneAxis() if len(weight.shape) > 1 else None)


def _position_bias(positions: object) -> tuple[Use, ...]:
    match positions:
        case RelativeBias(table=table, max_distance=reach):
            return (Use("position_bias", (table,), view=ByDistance(reach)),)
        case _:
            return ()


def _alibi(positions: Rope | Alibi | None) -> str | None:
    match positions:
        case Alibi(rounded=True):
            return "rounded"
        case Alibi(scaled=True):
            return "scaled"
        case Alibi():
            return "plain"
        case _:
            return None


def _key_up(node: MlaAttention) -> Use:
    view = HeadRows(node.heads, 0, node.nope)  # [H nope latent]
    return Use("weight", (node.kv_up.weight,), view=view)


def _value_up(node: MlaAttention) -> Use:
    view = HeadRows(node.heads, node.nope, node.nope + node.value, transposed=True)
    return Use("weight", (node.kv_up.weight,), view=view)  # [H latent value]
