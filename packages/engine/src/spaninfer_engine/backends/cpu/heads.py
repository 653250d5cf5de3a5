"""Recorded head operators of the CPU backend: split, join and rotate."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from spaninfer_kernels_cpu import (
    Columns,
    Llama4Growth,
    Matrix,
    RopeAngles,
    copy_call,
    llama4_scale_call,
    logn_call,
    rope_call,
)

from spaninfer_engine.backends.cpu.recorder import Recorder, Value
from spaninfer_engine.backends.cpu.script import Values, Write
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import Pack


def split(operation: Operation, _pack: Pack) -> Write:
    """Parts of the last axis: views of rows, copies of heads."""
    sizes = cast(tuple[int, ...], operation.constant("sizes"))

    def write(to: Recorder, x: Value) -> Values:
        if len(x.shape) == 1:
            return x.cut(sizes)
        heads, size = x.shape
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(
            _copied(to, x, heads, size, start, (heads, part))
            for start, part in zip(starts, sizes, strict=False)
        )

    return write


def split_groups(operation: Operation, _pack: Pack) -> Write:
    """Queries, keys and values that lie group by group."""
    kv_heads = int(operation.number("kv_heads"))
    ratio = int(operation.number("heads")) // kv_heads

    def write(to: Recorder, x: Value) -> Values:
        size = x.size // kv_heads
        head = size // (ratio + 2)
        return (
            _copied(to, x, kv_heads, size, 0, (kv_heads * ratio, head)),
            _copied(to, x, kv_heads, size, ratio * head, (kv_heads, head)),
            _copied(to, x, kv_heads, size, (ratio + 1) * head, (kv_heads, head)),
        )

    return write


def _copied(
    to: Recorder, x: Value, parts: int, size: int, first: int, shape: tuple[int, ...]
) -> Value:
    """Record a copy of the numbers from `first` on of every part of a row; return its value."""
    out = to.new(*shape, per_logit=x.per_logit)
    count = out.size // parts
    to.calls.append(
        copy_call(
            Columns(x.rows, size, first),
            into=Columns(out.rows, count, 0),
            parts=parts,
            width=count,
            count=x.count,
        )
    )
    return out


def concat(_operation: Operation, _pack: Pack) -> Write:
    """The last axes side by side."""

    def write(to: Recorder, *inputs: Value) -> Values:
        parts = math.prod(inputs[0].shape[:-1])
        width = sum(x.shape[-1] for x in inputs)
        out = to.new(*inputs[0].shape[:-1], width, per_logit=inputs[0].per_logit)
        first = 0
        for x in inputs:
            size = x.shape[-1]
            to.calls.append(
                copy_call(
                    Columns(x.rows, size, 0),
                    into=Columns(out.rows, width, first),
                    parts=parts,
                    width=size,
                    count=x.count,
                )
            )
            first += size
        return (out,)

    return write


def join_rows(operation: Operation, _pack: Pack) -> Write:
    """Neighbouring rows side by side: rows of those that are wanted."""
    joined = int(operation.number("count"))

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(joined * x.size, per_logit=True)
        start, stride = x.rows.address, x.rows.stride
        for which in range(joined):
            every = Matrix(start + which * stride, joined * stride)
            to.calls.append(
                copy_call(
                    Columns(every, x.size, 0),
                    into=Columns(out.rows, out.size, which * x.size),
                    parts=1,
                    width=x.size,
                    count=out.count,
                )
            )
        return (out,)

    return write


def split_heads(operation: Operation, _pack: Pack) -> Write:
    """A view with an axis for heads."""
    heads = int(operation.number("heads"))
    return lambda _to, x: (x.part(0, (heads, x.size // heads)),)


def merge_heads(_operation: Operation, _pack: Pack) -> Write:
    """A view without it."""
    return lambda _to, x: (x.part(0, (x.size,)),)


def rotate(operation: Operation, _pack: Pack) -> Write:
    """The first channels of every head rotated."""
    rope, paired = int(operation.number("rope")), operation.constant("style") == "interleaved"

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=False)
        cos, sin = to.inputs.angles(rope)
        heads, size = x.shape
        to.calls.append(
            rope_call(
                x.rows,
                RopeAngles(cos, sin, to.rotated[rope], paired),
                out=out.rows,
                heads=heads,
                size=size,
            )
        )
        return (out,)

    return write


def llama4_scale(operation: Operation, _pack: Pack) -> Write:
    """Queries grow by a step per `length` positions."""
    beta, length = operation.number("beta"), int(operation.number("length"))
    offset = int(operation.number("offset"))

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=False)
        call = llama4_scale_call(
            x.rows,
            out=out.rows,
            channels=x.size,
            position=to.inputs.places,
            growth=Llama4Growth(beta, length, offset),
        )
        to.calls.append(call)
        return (out,)

    return write


def logn(operation: Operation, _pack: Pack) -> Write:
    """Queries beyond `base` positions times the logarithm of their position."""
    base = int(operation.number("base"))

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, per_logit=False)
        to.calls.append(
            logn_call(x.rows, out=out.rows, channels=x.size, position=to.inputs.places, base=base)
        )
        return (out,)

    return write
