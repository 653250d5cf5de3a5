"""Lowering of attention nodes: over the KV cache, within a text, latent."""

from __future__ import annotations

from spaninfer_engine.ops.operation import ByDistance, GroupedRows, HeadRows, Use
from spaninfer_engine.ops.scoring import AlibiKind, RaggedScoring, Scoring
from spaninfer_engine.program.builder import ProgramBuilder, affine
from spaninfer_engine.program.lower_delta import lower_delta
from spaninfer_engine.spec.attention_nodes import (
    Alibi,
    Attention,
    AxialRope,
    FusedQkv,
    HeadNorms,
    Heads,
    Indexer,
    LowRank,
    MlaAttention,
    RaggedAttention,
    RelativeBias,
    Rope,
    RopeStyle,
    SplitQkv,
)
from spaninfer_engine.spec.delta_nodes import DeltaAttention
from spaninfer_engine.spec.weight_nodes import Linear


def lower_attention(
    program: ProgramBuilder,
    node: Attention | MlaAttention | DeltaAttention | RaggedAttention,
    x: str,
) -> str:
    """Append what an attention computes of x; return its value."""
    match node:
        case Attention():
            return _causal(program, node, x)
        case MlaAttention():
            return _latent(program, node, x)
        case DeltaAttention():
            return lower_delta(program, node, x)
        case RaggedAttention():
            return _ragged(program, node, x)


def _causal(program: ProgramBuilder, node: Attention, x: str) -> str:
    q, k, v = _placed(program, node, x)
    if node.logn_base is not None:
        q = program.add("logn", q, name="q", base=node.logn_base)
    if (growth := node.llama4_scale) is not None:
        q = program.add(
            "llama4_scale",
            q,
            name="q",
            beta=growth.beta,
            length=growth.length,
            offset=growth.offset,
        )
    place = program.layer_in_group(node.group)
    program.add_many("append", k, v, names=(), group=node.group, layer=place)
    alibi = _alibi(node.positions)
    read = program.add(
        "attend",
        q,
        name="read",
        uses=() if node.sinks is None else (Use("sinks", (node.sinks,)),),
        group=node.group,
        layer=place,
        scoring=Scoring(node.scale, node.softcap, node.window, alibi, node.chunked),
    )
    read = program.add("merge_heads", read, name="read")
    if isinstance(node.qkv, SplitQkv) and node.gated:
        gate = _part_of_heads(program, node.qkv.q, node.heads, 1, x, "gate")
        read = program.add("sigmoid_gate", read, gate, name="read")
    return program.linear(node.out, read, "attention")


def _part_of_heads(
    program: ProgramBuilder, q: Linear, heads: Heads, part: int, x: str, name: str
) -> str:
    """Return the queries of a projection to [q, gate] per head, or the gates."""
    use = Use("weight", (q.weight,), view=GroupedRows((heads.dim, heads.dim), (part,)))
    return program.add("linear", x, name=name, uses=(use,))


def _ragged(program: ProgramBuilder, node: RaggedAttention, x: str) -> str:
    scoring = RaggedScoring(node.scale, node.softcap, node.window, node.ahead, node.in_windows)
    read = program.add(
        "attend_ragged",
        *_placed(program, node, x),
        name="read",
        uses=_position_bias(node.positions),
        scoring=scoring,
    )
    return program.linear(node.out, program.add("merge_heads", read, name="read"), "attention")


def _latent(program: ProgramBuilder, node: MlaAttention, x: str) -> str:
    """Attention over latents: the up-projections of keys and values move to the query's side.

    q_nope.(W_uk latent) = (W_uk^T q_nope).latent, so all heads read one cached latent, and
    W_uv is applied to what they read (DeepSeek-V2, 2024, section 2.1).
    """
    low, up = x, node.q
    if isinstance(up, LowRank):
        low, up = program.norm(up.norm, program.linear(up.down, x, "low")), up.up
    q = program.add("split_heads", program.linear(up, low, "y"), name="q", heads=node.heads)
    q_nope, q_rope = program.add_many(
        "split", q, names=("q_nope", "q_rope"), sizes=(node.nope, node.rotated)
    )
    q_latent = program.add("head_linear", q_nope, name="q_latent", uses=(_key_up(node),))
    q = program.add("concat", q_latent, _rotate(program, node.rope, q_rope), name="q")
    down = program.linear(node.kv_down, x, "kv")
    latent, k_rope = program.add_many(
        "split", down, names=("latent", "k_rope"), sizes=(node.latent, node.rotated)
    )
    latent = program.add("split_heads", program.norm(node.kv_norm, latent), name="latent", heads=1)
    k_rope = program.add("split_heads", k_rope, name="k_rope", heads=1)
    k = program.add("concat", latent, _rotate(program, node.rope, k_rope), name="k")
    place = program.layer_in_group(node.group)
    program.add_many("append", k, names=(), group=node.group, layer=place)
    if isinstance(node.indexer, Indexer):
        program.selected = _select(program, node.indexer, low, x, node.rope)
    if node.indexer is None:
        scoring = Scoring(node.scale)
        read = program.add("attend", q, name="read", group=node.group, layer=place, scoring=scoring)
    else:
        read = program.add(
            "attend_selected",
            q,
            program.selected,
            name="read",
            group=node.group,
            layer=place,
            scale=node.scale,
        )
    read = program.add("head_linear", read, name="read", uses=(_value_up(node),))
    return program.linear(node.out, program.add("merge_heads", read, name="read"), "attention")


def _select(program: ProgramBuilder, node: Indexer, low: str, x: str, rope: Rope) -> str:
    """Return the positions of the keys that each token reads."""
    q = program.add("split_heads", program.linear(node.q, low, "y"), name="q", heads=node.heads)
    k = program.norm(node.k_norm, program.linear(node.k, x, "k"))
    k = program.add("split_heads", k, name="k", heads=1)
    q, k = (_rotate(program, rope, each, node.style) for each in (q, k))
    group, place = node.group, program.layer_in_group(node.group)
    program.add_many("append", k, names=(), group=group, layer=place)
    uses = affine(node.weights.weight, node.weights.bias)
    weights = program.add("router", x, name="weights", uses=uses)  # as exact: a choice hangs on it
    return program.add(
        "select_keys",
        q,
        weights,
        name="selected",
        group=group,
        layer=place,
        top_k=node.top_k,
    )


def _placed(
    program: ProgramBuilder, node: Attention | RaggedAttention, x: str
) -> tuple[str, str, str]:
    """Return queries, keys and values, the first two normed and rotated."""
    q, k, v = _query_key_value(program, node, x)
    norms = node.norms
    if norms is not None and not norms.behind:
        q, k = _head_norms(program, norms, q, k, node.heads)
    if isinstance(node.positions, Rope | AxialRope):
        q, k = _rotate(program, node.positions, q), _rotate(program, node.positions, k)
    if norms is not None and norms.behind:
        q, k = _head_norms(program, norms, q, k, node.heads)
    return q, k, v


def _head_norms(
    program: ProgramBuilder, norms: HeadNorms, q: str, k: str, heads: Heads
) -> tuple[str, str]:
    if not norms.joint:
        return program.norm(norms.q, q), program.norm(norms.k, k)
    q = program.norm(norms.q, program.add("merge_heads", q, name="q"))
    k = program.norm(norms.k, program.add("merge_heads", k, name="k"))
    return (
        program.add("split_heads", q, name="q", heads=heads.query),
        program.add("split_heads", k, name="k", heads=heads.kv),
    )


def _query_key_value(
    program: ProgramBuilder, node: Attention | RaggedAttention, x: str
) -> tuple[str, ...]:
    heads = node.heads
    match node.qkv:
        case SplitQkv(q=q, k=k, v=v) if isinstance(node, Attention) and node.gated:
            queries = _part_of_heads(program, q, heads, 0, x, "q")
            flat = queries, program.linear(k, x, "k"), program.linear(v, x, "v")
        case SplitQkv(q=q, k=k, v=v):
            flat = program.linear(q, x, "q"), program.linear(k, x, "k"), program.linear(v, x, "v")
        case FusedQkv(linear=linear, layout="concat"):
            sizes = tuple(count * heads.dim for count in (heads.query, heads.kv, heads.kv))
            both = program.linear(linear, x, "qkv")
            q_, k_, v_ = program.add_many("split", both, names=("q", "k", "v"), sizes=sizes)
            flat = q_, k_, v_
        case FusedQkv(linear=linear):
            both = program.linear(linear, x, "qkv")
            return program.add_many(
                "split_groups",
                both,
                names=("q", "k", "v"),
                heads=heads.query,
                kv_heads=heads.kv,
            )
    counts = (heads.query, heads.kv, heads.kv)
    return tuple(
        program.add("split_heads", value, name=name, heads=count)
        for value, name, count in zip(flat, "qkv", counts, strict=True)
    )


def _rotate(
    program: ProgramBuilder, rope: Rope | AxialRope, x: str, style: RopeStyle | None = None
) -> str:
    index = program.ropes.index(rope)
    return program.add("rotate", x, name="rotated", rope=index, style=style or rope.style)


def _position_bias(positions: object) -> tuple[Use, ...]:
    match positions:
        case RelativeBias(table=table, max_distance=reach):
            return (Use("position_bias", (table,), view=ByDistance(reach)),)
        case _:
            return ()


def _alibi(positions: Rope | Alibi | None) -> AlibiKind | None:
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
