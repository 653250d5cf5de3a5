"""Lowering: the nodes of a spec become a program of operators.

A new node is a new arm of a match: here, in lower_attention.py or in lower_mlp.py. Nothing here
knows a backend, a tensor or a checkpoint.
"""

from __future__ import annotations

from spaninfer_engine.ops.bound import Result
from spaninfer_engine.ops.operation import UnitRows, Use
from spaninfer_engine.program.builder import ProgramBuilder, affine
from spaninfer_engine.program.lower_attention import lower_attention
from spaninfer_engine.program.lower_mlp import lower_mlp
from spaninfer_engine.program.program import Program
from spaninfer_engine.spec.nodes import (
    Decoder,
    Embedding,
    Encoder,
    Head,
    Layer,
    Learned,
    Model,
    Sinusoidal,
    ropes,
)


def lower(model: Model) -> Program:
    """Return the program that computes the logits of a step's rows with logits, or a vector per
    text; what a classifier makes of vectors is no part of it (`run.pooling_head`).
    """
    program = ProgramBuilder(ropes(model), model.groups)
    x = _embedding(program, model.embedding)
    for index, layer in enumerate(model.layers):
        program.layer = index
        x = lower_layer(program, layer, x)
        x = program.add("add_rows", x, name="x", layer=index)
    program.layer = None
    match model:
        case Decoder(norm=norm, head=head):
            x = program.add("gather_rows", x, name="rows")
            result, returns = _head(program, head, program.norm(norm, x)), Result.LOGITS
        case Encoder(norm=norm, pool=pool):
            if pool.token is not None:
                x = program.add("gather_rows", x, name="vectors")
                result = program.norm(norm, x)
            else:
                x = program.norm(norm, x)
                result = program.add("pool", x, name="vectors", kinds=pool.kinds)
            returns = Result.VECTORS
    return Program(tuple(program.operations), result, ropes(model), model.groups, returns)


def lower_layer(program: ProgramBuilder, node: Layer, x: str) -> str:
    """Append a layer; return the residual stream behind it."""
    return (_parallel_layer if node.parallel else _layer)(program, node, x)


def _embedding(program: ProgramBuilder, node: Embedding) -> str:
    x = program.add("embed", name="x", uses=(Use("table", (node.table,)),), scale=node.scale)
    x = program.add("replace_rows", x, name="x")
    if node.project is not None:
        x = program.linear(node.project, x, "x")
    match node.positions:
        case Learned(table=table, offset=offset):
            uses = (Use("table", (table,)),)
            places = program.add("learned_positions", name="places", uses=uses, offset=offset)
            x = program.add("add", x, places, name="x", scale=1.0)
        case Sinusoidal(dim=dim, offset=offset):
            places = program.add("sinusoidal_positions", name="places", dim=dim, offset=offset)
            x = program.add("add", x, places, name="x", scale=1.0)
    if node.types is not None:
        uses = (Use("table", (node.types,)),)
        x = program.add("add_types", x, name="x", uses=uses)
    return program.norm(node.norm, x)


def _layer(program: ProgramBuilder, node: Layer, x: str) -> str:
    norms = node.norms
    y = lower_attention(program, node.attention, program.norm(norms.attention_pre, x))
    y = program.norm(norms.attention_post, y)
    x = program.add("add", x, y, name="x", scale=node.residual_scale)
    x = program.norm(norms.attention_after, x)
    y = lower_mlp(program, node.mlp, program.norm(norms.mlp_pre, x))
    y = program.norm(norms.mlp_post, y)
    x = program.add("add", x, y, name="x", scale=node.residual_scale)
    return program.norm(norms.mlp_after, x)


def _parallel_layer(program: ProgramBuilder, node: Layer, x: str) -> str:
    norms = node.norms
    attention_in = program.norm(norms.attention_pre, x)
    mlp_in = attention_in if norms.mlp_pre is None else program.norm(norms.mlp_pre, x)
    attention = program.norm(
        norms.attention_post, lower_attention(program, node.attention, attention_in)
    )
    mlp = program.norm(norms.mlp_post, lower_mlp(program, node.mlp, mlp_in))
    both = program.add("add", attention, mlp, name="both", scale=1.0)
    return program.add("add", x, both, name="x", scale=node.residual_scale)


def _head(program: ProgramBuilder, node: Head, x: str) -> str:
    if node.project is not None:
        x = program.linear(node.project, x, "rows")
    view = UnitRows() if node.normalise else None
    weight = Use("weight", (node.linear.weight,), view=view)
    uses = (weight, *affine(node.linear.weight, node.linear.bias)[1:])
    logits = program.add("linear", x, name="logits", uses=uses)
    if node.scale != 1.0:
        logits = program.add("scale", logits, name="logits", factor=node.scale)
    if node.softcap is not None:
        logits = program.add("softcap", logits, name="logits", cap=node.softcap)
    return logits
