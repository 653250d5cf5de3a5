"""What the CPU backend records: a claim per operator, and for those that become fewer calls.

Each claim's kernel writes calls down (`cpu_script.Recorded`), for values whose places are known
then. Operators that are not here are computed by numpy between scripts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from spaninfer_kernels_cpu import attention, calls, packed, product_call
from spaninfer_kernels_cpu.attend_kernel import PART_NUMBERS
from spaninfer_op_reference import alibi_slopes

from spaninfer_engine.ops.cpu_recorder import Recorder, Value
from spaninfer_engine.ops.cpu_script import Recorded, Write
from spaninfer_engine.ops.fuse import can_join, use_of
from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.ops.table import AlibiKind, Claim, Pack

Values: TypeAlias = tuple[Value, ...]
Operations: TypeAlias = Sequence[Operation]

PRODUCT = "product"  # the layout of weights that products read
EXACT_PRODUCT = "exact product"  # the same, for numbers that are never made codes
TABLE = "table"  # the layout of tables of which a step reads a few rows


def recorded_claims(*, rounded: bool) -> tuple[Claim, ...]:
    """Return the claims, longest first; `rounded`: products see activations in bfloat16."""
    products = _Products(PRODUCT, rounded)
    exact = _Products(EXACT_PRODUCT, False)
    return (
        Claim(
            "gated_linears",
            ("g = linear x", "u = linear x", "y = gate g u"),
            "y",
            products.gated,
            lambda operations: can_join(operations[:2]),
        ),
        Claim(
            "joined_linears",
            ("a = linear x", "b = linear x", "c = linear x"),
            "a b c",
            products.joined,
            can_join,
        ),
        Claim("joined_linears", ("a = linear x", "b = linear x"), "a b", products.joined, can_join),
        Claim("linear_add", ("y = linear x", "z = add r y"), "z", products.added),
        Claim("linear", ("y = linear x",), "y", products.single),
        Claim("router", ("y = router x",), "y", exact.single),
        *(_claim(pattern, build) for pattern, build in _SINGLE),
        Claim("attend", ("y = attend q",), "y", _attend, _has_kernel),
    )


def _claim(pattern: str, build: Callable[[Operation, Pack], Write]) -> Claim:
    outputs, _, call = pattern.rpartition("=")
    name = call.split()[0]
    return Claim(
        name,
        (pattern,),
        outputs.strip(),
        lambda operations, pack: Recorded(build(operations[0], pack)),
    )


# ---- products ------------------------------------------------------------------------------------


class _Products:
    """Products with packed weights."""

    def __init__(self, layout: str, rounded: bool) -> None:
        self._layout, self._rounded = layout, rounded

    def single(self, operations: Operations, pack: Pack) -> Recorded:
        """One product."""
        weight, bias = self._weights(operations, pack)
        return Recorded(lambda to, x: (self._product(to, x, weight, bias),))

    def joined(self, operations: Operations, pack: Pack) -> Recorded:
        """One product with the rows of all weights, whose output is cut."""
        weight, bias = self._weights(operations, pack)
        sizes = [use_of(operation, "weight").shape[0] for operation in operations]

        def write(to: Recorder, x: Value) -> Values:
            return _cut(self._product(to, x, weight, bias), sizes)

        return Recorded(write)

    def added(self, operations: Operations, pack: Pack) -> Recorded:
        """A product that is added to rows on its way out."""
        weight, bias = self._weights(operations[:1], pack)
        scale = operations[1].number("scale")

        def write(to: Recorder, x: Value, residual: Value) -> Values:
            return (self._product(to, x, weight, bias, residual, scale),)

        return Recorded(write)

    def gated(self, operations: Operations, pack: Pack) -> Recorded:
        """The product of a gated MLP's first two weights, then act(gate) * up."""
        weight, bias = self._weights(operations[:2], pack)
        inner = operations[0].weights[0].shape[0]
        formula = calls.gate_of(str(operations[2].constant("act")))

        def write(to: Recorder, x: Value) -> Values:
            both = self._product(to, x, weight, bias)
            gate, up = _cut(both, (inner, inner))
            out = _formula(to, formula, gate, up)
            to.give_back(both.buffer, wanted=both.wanted)
            return (out,)

        return Recorded(write)

    def _weights(
        self, operations: Operations, pack: Pack
    ) -> tuple[packed.Packed, calls.Floats | None]:
        """Return the weights below one another, and the biases."""
        uses = [use_of(operation, "weight") for operation in operations]
        weight: packed.Packed = pack(uses, self._layout)
        if len(operations[0].weights) == 1:
            return weight, None
        return weight, pack([use_of(operation, "bias") for operation in operations], "wide")

    def _product(
        self,
        to: Recorder,
        x: Value,
        weight: packed.Packed,
        bias: calls.Floats | None,
        residual: Value | None = None,
        scale: float = 1.0,
    ) -> Value:
        layout = weight.layout
        out = to.new(layout.outputs, wanted=x.wanted)
        row_bytes = product_call.scratch_bytes(layout, rounded=self._rounded)
        to.calls += product_call.product_calls(
            x.rows,
            weight,
            out=out.rows,
            scratch=to.scratch(row_bytes, wanted=x.wanted) if row_bytes else 0,
            bias=bias,
            residual=None if residual is None else residual.rows,
            scale=scale,
            rounded=self._rounded,
            wanted=x.wanted,
        )
        return out


def _cut(x: Value, sizes: Sequence[int]) -> Values:
    starts = np.cumsum([0, *sizes]).tolist()
    return tuple(x.part(start, (size,)) for start, size in zip(starts, sizes, strict=False))


# ---- rows ----------------------------------------------------------------------------------------


def _embed(operation: Operation, pack: Pack) -> Write:
    table = _table(operation, pack)
    scale = operation.number("scale")

    def write(to: Recorder) -> Values:
        out = to.new(table.shape[1], wanted=False)
        ids = to.inputs.token_ids
        to.calls.append(calls.embed_call(table, ids=ids, out=out.rows, scale=scale))
        return (out,)

    return write


def _learned_positions(operation: Operation, pack: Pack) -> Write:
    table, offset = _table(operation, pack), int(operation.number("offset"))

    def write(to: Recorder) -> Values:
        out = to.new(table.shape[1], wanted=False)
        ids = to.inputs.places
        to.calls.append(calls.embed_call(table, ids=ids, out=out.rows, offset=offset))
        return (out,)

    return write


def _table(operation: Operation, pack: Pack) -> Any:
    return pack([use_of(operation, "table")], TABLE)


def _take_rows(_operation: Operation, _pack: Pack) -> Write:
    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, wanted=True)
        wanted = to.inputs.wanted
        to.calls.append(calls.take_rows_call(x.rows, wanted=wanted, out=out.rows, channels=x.size))
        return (out,)

    return write


def _rms_norm(operation: Operation, pack: Pack) -> Write:
    weight = _vector(operation, "weight", pack)
    eps, plus_one = operation.number("eps"), bool(operation.constant("plus_one"))

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, wanted=x.wanted)
        to.calls.append(
            calls.rms_norm_call(
                x.rows,
                weight=weight,
                out=out.rows,
                eps=eps,
                plus_one=plus_one,
                parts=x.size // len(weight),
                count=x.count,
            )
        )
        return (out,)

    return write


def _layer_norm(operation: Operation, pack: Pack) -> Write:
    weight, eps = _vector(operation, "weight", pack), operation.number("eps")
    bias = _vector(operation, "bias", pack) if len(operation.weights) > 1 else None

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, wanted=x.wanted)
        to.calls.append(
            calls.layer_norm_call(
                x.rows,
                weight=weight,
                bias=bias,
                out=out.rows,
                eps=eps,
                parts=x.size // len(weight),
                count=x.count,
            )
        )
        return (out,)

    return write


def _vector(operation: Operation, argument: str, pack: Pack) -> Any:
    return pack([use_of(operation, argument)], "wide")


def _formula(
    to: Recorder, formula: calls.Formula, x: Value, y: Value | None = None, number: float = 0.0
) -> Value:
    """Record a formula of x, y and a number; return its value."""
    out = to.new(*x.shape, wanted=x.wanted)
    to.calls.append(
        calls.formula_call(
            formula,
            x.rows,
            (y or x).rows,
            out=out.rows,
            channels=x.size,
            number=number,
            count=x.count,
        )
    )
    return out


def _add(operation: Operation, _pack: Pack) -> Write:
    scale = operation.number("scale")
    return lambda to, x, y: (_formula(to, calls.ADD, x, y, scale),)


def _scale(operation: Operation, _pack: Pack) -> Write:
    factor = operation.number("factor")
    return lambda to, x: (_formula(to, calls.SCALE, x, number=factor),)


def _softcap(operation: Operation, _pack: Pack) -> Write:
    cap = operation.number("cap")
    return lambda to, x: (_formula(to, calls.SOFTCAP, x, number=cap),)


def _gate(operation: Operation, _pack: Pack) -> Write:
    formula = calls.gate_of(str(operation.constant("act")))
    return lambda to, gate, up: (_formula(to, formula, gate, up),)


def _activation(operation: Operation, _pack: Pack) -> Write:
    formula = calls.activation_of(str(operation.constant("act")))
    return lambda to, x: (_formula(to, formula, x),)


# ---- heads ---------------------------------------------------------------------------------------


def _split(operation: Operation, _pack: Pack) -> Write:
    sizes = operation.constant("sizes")
    assert isinstance(sizes, tuple)

    def write(to: Recorder, x: Value) -> Values:
        if len(x.shape) == 1:
            return _cut(x, sizes)
        heads, size = x.shape
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(
            _copied(to, x, heads, size, start, (heads, part))
            for start, part in zip(starts, sizes, strict=False)
        )

    return write


def _split_groups(operation: Operation, _pack: Pack) -> Write:
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
    out = to.new(*shape, wanted=x.wanted)
    count = out.size // parts
    to.calls.append(
        calls.copy_call(
            x.rows,
            out=out.rows,
            parts=parts,
            size=size,
            first=first,
            out_size=count,
            out_first=0,
            count=count,
        )
    )
    return out


def _concat(_operation: Operation, _pack: Pack) -> Write:
    def write(to: Recorder, *inputs: Value) -> Values:
        parts = math.prod(inputs[0].shape[:-1])
        width = sum(x.shape[-1] for x in inputs)
        out = to.new(*inputs[0].shape[:-1], width, wanted=False)
        first = 0
        for x in inputs:
            size = x.shape[-1]
            to.calls.append(
                calls.copy_call(
                    x.rows,
                    out=out.rows,
                    parts=parts,
                    size=size,
                    first=0,
                    out_size=width,
                    out_first=first,
                    count=size,
                )
            )
            first += size
        return (out,)

    return write


def _split_heads(operation: Operation, _pack: Pack) -> Write:
    heads = int(operation.number("heads"))
    return lambda _to, x: (x.part(0, (heads, x.size // heads)),)


def _merge_heads(_operation: Operation, _pack: Pack) -> Write:
    return lambda _to, x: (x.part(0, (x.size,)),)


def _rotate(operation: Operation, _pack: Pack) -> Write:
    rope, paired = int(operation.number("rope")), operation.constant("style") == "interleaved"

    def write(to: Recorder, x: Value) -> Values:
        out = to.new(*x.shape, wanted=False)
        cos, sin = to.inputs.angles(rope)
        heads, size = x.shape
        to.calls.append(
            calls.rotate_call(
                x.rows,
                out=out.rows,
                heads=heads,
                size=size,
                half=to.rotated[rope],
                cos=cos,
                sin=sin,
                paired=paired,
            )
        )
        return (out,)

    return write


# ---- attention -----------------------------------------------------------------------------------


def _append(operation: Operation, _pack: Pack) -> Write:
    def write(to: Recorder, *inputs: Value) -> Values:
        spans = _spans(operation, to)
        for value, into in zip(inputs, (spans.keys, spans.values), strict=False):
            to.calls.append(calls.append_call(value.rows, into, spans))
        return ()

    return write


def _attend(operations: Operations, _pack: Pack) -> Recorded:
    operation = operations[0]
    constants: dict[str, Any] = dict(operation.constants)

    def write(to: Recorder, query: Value) -> Values:
        spans = _spans(operation, to)
        heads = query.shape[0]
        out = to.new(heads, spans.values.shape[-1], wanted=False)
        scores = scores_of(heads, *(constants.get(name) for name in _SCORES))
        kv_heads = spans.keys.shape[2]
        plan = to.inputs.plan(
            heads // kv_heads,
            scores.window or 0,
            4 * heads * (spans.values.shape[3] + PART_NUMBERS),
        )
        to.calls += calls.attend_calls(
            query.rows, heads=heads, spans=spans, plan=plan, scores=scores, out=out.rows
        )
        return (out,)

    return Recorded(write)


_SCORES = ("scale", "softcap", "window", "alibi")


def _has_kernel(operations: Operations) -> bool:
    """Falcon's rounded ALiBi is computed by definition."""
    return dict(operations[0].constants).get("alibi") != "rounded"


@cache
def scores_of(
    heads: int,
    scale: float,
    softcap: float | None,
    window: int | None,
    alibi: AlibiKind | None,
) -> attention.Scores:
    """Return the kernel's settings, the same for every step; checked once."""
    if alibi is None:
        return attention.Scores(scale, softcap, window)
    slopes = alibi_slopes(heads) * (scale if alibi == "scaled" else 1.0)
    return attention.Scores(scale, softcap, window, slopes.astype(np.float32))


def _spans(operation: Operation, to: Recorder) -> calls.Spans:
    group, layer = int(operation.number("group")), int(operation.number("layer"))
    keys, values = (part[layer] for part in to.caches[group])
    inputs = to.inputs
    return calls.Spans(keys, values, *inputs.table(group), inputs.request, inputs.position)


_SINGLE: tuple[tuple[str, Callable[[Operation, Pack], Write]], ...] = (
    ("x = embed", _embed),
    ("x = learned_positions", _learned_positions),
    ("y = take_rows x", _take_rows),
    ("y = rms_norm x", _rms_norm),
    ("y = layer_norm x", _layer_norm),
    ("z = add x y", _add),
    ("y = scale x", _scale),
    ("y = softcap x", _softcap),
    ("z = gate x y", _gate),
    ("y = activation x", _activation),
    ("a b = split x", _split),
    ("a b c = split x", _split),
    ("z = concat x y", _concat),
    ("a b c = split_groups x", _split_groups),
    ("y = split_heads x", _split_heads),
    ("y = merge_heads x", _merge_heads),
    ("y = rotate x", _rotate),
    ("append k v", _append),
    ("append k", _append),
)
