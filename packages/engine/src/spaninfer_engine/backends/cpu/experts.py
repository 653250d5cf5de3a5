"""Recorded mixture of experts of the CPU backend: routing, and the experts' MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from spaninfer_kernels_cpu import ExpertWeights, Routes, route_call

from spaninfer_engine.backends.cpu.gemm import STACK, TURNED_STACK
from spaninfer_engine.backends.cpu.recorder import Recorder, Value
from spaninfer_engine.backends.cpu.script import Recorded, Values, Write
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Pack

_BIASES = ("gate_up_bias", "down_bias")


def route(operation: Operation, pack: Pack) -> Write:
    """Ids and shares; the ids are int32 in the memory of float32, which calls alone read."""
    routing = operation.routing()
    scores, top_k = asdict(routing), routing.top_k
    correction = pack([use_of(operation, "correction")], "wide") if operation.weights else None

    def write(to: Recorder, logits: Value) -> Values:
        ids, shares = (to.new(top_k, per_logit=logits.per_logit) for _ in range(2))
        to.calls.append(
            route_call(
                logits.rows,
                experts=logits.size,
                scores=scores,
                correction=correction,
                out=Routes(ids.rows.address, shares.rows.address),
                count=logits.count,
            )
        )
        return ids, shares

    return write


def experts(operations: Sequence[Operation], pack: Pack, *, rounded: bool) -> Recorded:
    """The sums of the chosen experts' gated MLPs."""
    operation = operations[0]
    turned = operation.constant("layout") == "io"
    layout = TURNED_STACK if turned else STACK
    uses = {use.argument: use for use in operation.weights}
    raising = [uses[name] for name in ("gate", "up", "gate_up") if name in uses]
    gate_up, down = pack(raising, layout), pack([uses["down"]], layout)
    biases = {name: pack([uses[name]], "wide") for name in _BIASES if name in uses}
    act = str(operation.constant("act"))

    def write(to: Recorder, x: Value, ids: Value, shares: Value) -> Values:
        mlps = ExpertWeights(gate_up, down, ids.size, act, rounded, **biases)
        out = to.new(mlps.channels, per_logit=x.per_logit)
        to.calls += mlps.calls(
            x.rows,
            Routes(ids.rows.address, shares.rows.address),
            out=out.rows,
            scratch=to.scratch(mlps.scratch_bytes, per_logit=x.per_logit),
            capacity=to.capacity(per_logit=x.per_logit),
            counts=to.inputs.experts(ids.size, down.count, per_logit=x.per_logit),
        )
        return (out,)

    return Recorded(write)
