"""Recorded row operators of the CPU backend: embeddings, norms, element-wise formulas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spaninfer_kernels_cpu import (
    ADD,
    SCALE,
    SIGMOID_GATE,
    SOFTCAP,
    Call,
    Formula,
    Indirect,
    LayerNorm,
    Packed,
    RmsNorm,
    activation_formula,
    embed_call,
    embed_codes_call,
    formula_call,
    gate_formula,
    gather_rows_call,
    layer_norm_call,
    rms_norm_call,
    scale_rows_call,
    sigmoid_gate_call,
)

from spaninfer_engine.backends.cpu.recorder import Recorder, Value
from spaninfer_engine.backends.cpu.script import Values, Write
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Pack

TABLE = "table"  # the layout of tables of which a step reads a few rows


def embed(operation: Operation, pack: Pack) -> Write:
    """Rows of a table by token id."""
    table, scale = _table(operation, pack), operation.number("scale")
    return lambda to: _rows_of(to, table, to.inputs.token_ids, scale=scale)


def learned_positions(operation: Operation, pack: Pack) -> Write:
    """Rows of a table by position."""
    table, offset = _table(operation, pack), int(operation.number("offset"))
    return lambda to: _rows_of(to, table, to.inputs.places, offset=offset)


def add_types(operation: Operation, pack: Pack) -> Write:
    """Rows plus those of a table by token type."""
    table = pack([use_of(operation, "table")], "wide")

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=False)
        to.calls.append(embed_call(table, ids=to.inputs.types(), out=out.rows, onto=x.rows))
        return (out,)

    return write


def _rows_of(
    to: Recorder, table: Any, ids: Indirect, *, scale: float = 1.0, offset: int = 0
) -> Values:
    coded = isinstance(table, Packed)
    call = embed_codes_call if coded else embed_call
    out = to.new(table.layout.channels if coded else table.shape[1], per_logit=False)
    to.calls.append(call(table, ids=ids, out=out.rows, scale=scale, offset=offset))
    return (out,)


def _table(operation: Operation, pack: Pack) -> Any:
    return pack([use_of(operation, "table")], TABLE)


def gather_rows(_operation: Operation, _pack: Pack) -> Write:
    """The rows that get logits."""

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=True)
        indices = to.inputs.logit_indices
        to.calls.append(gather_rows_call(x.rows, indices=indices, out=out.rows, channels=x.size))
        return (out,)

    return write


def rms_norm(operation: Operation, pack: Pack) -> Write:
    """The norm of rows, or of every head."""
    weight = _vector(operation, "weight", pack)
    eps, plus_one = operation.number("eps"), bool(operation.constant("plus_one"))
    return _norm(partial(rms_norm_call, norm=RmsNorm(weight, eps, plus_one)), len(weight))


def layer_norm(operation: Operation, pack: Pack) -> Write:
    """The norm of rows, or of every head."""
    weight, eps = _vector(operation, "weight", pack), operation.number("eps")
    bias = _vector(operation, "bias", pack) if len(operation.weights) > 1 else None
    return _norm(partial(layer_norm_call, norm=LayerNorm(weight, bias, eps)), len(weight))


def _norm(call: Callable[..., Any], channels: int) -> Write:
    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=x.per_logit)
        parts = x.size // channels
        to.calls.append(call(x.rows, out=out.rows, parts=parts, count=x.count))
        return (out,)

    return write


def _vector(operation: Operation, argument: str, pack: Pack) -> Any:
    return pack([use_of(operation, argument)], "wide")


def write_formula(
    to: Recorder,
    formula: Formula,
    x: Value,
    y: Value | None = None,
    number: float = 0.0,
) -> Value:
    """Record a formula of x, y and a number; return its value."""
    out = to.new(*x.shape, per_logit=x.per_logit)
    to.calls.append(
        formula_call(
            formula,
            (x.rows, (y or x).rows),
            out=out.rows,
            channels=x.size,
            number=number,
            count=x.count,
        )
    )
    return out


def add(operation: Operation, _pack: Pack) -> Write:
    """x + y * scale."""
    scale = operation.number("scale")
    return lambda to, x, y: (write_formula(to, ADD, x, y, scale),)


def scale(operation: Operation, _pack: Pack) -> Write:
    """x * factor."""
    factor = operation.number("factor")
    return lambda to, x: (write_formula(to, SCALE, x, number=factor),)


def softcap(operation: Operation, _pack: Pack) -> Write:
    """cap * tanh(x / cap)."""
    cap = operation.number("cap")
    return lambda to, x: (write_formula(to, SOFTCAP, x, number=cap),)


def gate(operation: Operation, _pack: Pack) -> Write:
    """act(gate) * up."""
    formula = gate_formula(str(operation.constant("act")))
    return lambda to, gate, up: (write_formula(to, formula, gate, up),)


def activation(operation: Operation, _pack: Pack) -> Write:
    """act(x)."""
    formula = activation_formula(str(operation.constant("act")))
    return lambda to, x: (write_formula(to, formula, x),)


def sigmoid_gate(_operation: Operation, _pack: Pack) -> Write:
    """x * sigmoid(gate), of a gate for each row, or for each number."""
    by_row = _by_row(sigmoid_gate_call)

    def write(to: Recorder, x: Value, gate: Value) -> Values:
        if gate.size == x.size:
            return (write_formula(to, SIGMOID_GATE, gate, x),)
        return by_row(to, x, gate)

    return write


def scale_rows(_operation: Operation, _pack: Pack) -> Write:
    """x * factor."""
    return _by_row(scale_rows_call)


def _by_row(call: Callable[..., Call]) -> Write:
    """Return what writes the call of rows and a number of each."""

    def write(to: Recorder, x: Value, numbers: Value) -> Values:
        out = to.new(*x.shape, per_logit=x.per_logit)
        to.calls.append(call(x.rows, numbers.rows, out=out.rows, channels=x.size, count=x.count))
        return (out,)

    return write
