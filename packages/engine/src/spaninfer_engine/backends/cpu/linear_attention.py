"""Recorded linear attention of the CPU backend: convolution, gates, and the gated delta rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from spaninfer_kernels_cpu import DeltaRows, convolve_call, delta_gates_call, delta_rule_call

from spaninfer_engine.backends.cpu.recorder import Recorder, Value
from spaninfer_engine.backends.cpu.script import Recorded, Values, Write
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Pack


def convolve(operation: Operation, pack: Pack) -> Write:
    """The convolution of each channel, behind the inputs that states keep."""
    return _convolution(operation, pack, silu=False)


def convolve_silu(operations: Sequence[Operation], pack: Pack) -> Recorded:
    """The same, and its SiLU."""
    return Recorded(_convolution(operations[0], pack, silu=True))


def _convolution(operation: Operation, pack: Pack, *, silu: bool) -> Write:
    weight = np.ascontiguousarray(pack([use_of(operation, "weight")], "wide").T)
    group, layer = _place(operation)

    def write(to: Recorder, x: Value) -> Values:
        out, states = to.new(*x.shape, per_logit=False), to.caches[group].keys[layer]
        plan = to.inputs.states(group)
        to.calls.append(convolve_call(x.rows, weight, states, plan, out=out.rows, silu=silu))
        return (out,)

    return write


def delta_gates(operation: Operation, pack: Pack) -> Write:
    """Decays and rates of every head."""
    a_log, dt_bias = (pack([use_of(operation, name)], "wide") for name in ("a_log", "dt_bias"))

    def write(to: Recorder, a: Value, b: Value) -> Values:
        g, beta = (to.new(*a.shape, per_logit=False) for _ in range(2))
        out = (g.rows, beta.rows)
        to.calls.append(delta_gates_call((a.rows, b.rows), a_log, dt_bias, out=out))
        return (g, beta)

    return write


def delta_rule(operation: Operation, _pack: Pack) -> Write:
    """The answers of states to queries, after each has learned a key and a value."""
    group, layer = _place(operation)

    def write(to: Recorder, query: Value, key: Value, value: Value, g: Value, r: Value) -> Values:
        out, states = to.new(*value.shape, per_logit=False), to.caches[group].values[layer]
        rows = DeltaRows(query.rows, key.rows, value.rows, g.rows, r.rows)
        plan = to.inputs.states(group)
        to.calls.append(delta_rule_call(rows, query.shape[0], states, plan, out=out.rows))
        return (out,)

    return write


def _place(operation: Operation) -> tuple[int, int]:
    """Return the cache group and the layer in it."""
    return int(operation.number("group")), int(operation.number("layer"))
