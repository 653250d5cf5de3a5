"""Recorded GEMMs of the CPU backend with packed weights, alone and fused with neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Epilogue, Gemm, Packed, gate_formula

from spaninfer_engine.backends.cpu.elementwise import write_formula
from spaninfer_engine.backends.cpu.recorder import Floats, Recorder, Value
from spaninfer_engine.backends.cpu.script import Recorded, Values
from spaninfer_engine.backends.cpu.tuning import GemmTuner
from spaninfer_engine.ops.fuse import use_of
from spaninfer_engine.ops.operation import Operation, Packable
from spaninfer_engine.ops.table import Pack

PRODUCT = "product"  # the layout of weights that GEMMs read
EXACT_PRODUCT = "exact product"  # the same, for numbers that are never made codes
STACK = "stack of products"  # the same of weights[N O C], one per expert
TURNED_STACK = "stack of turned products"  # of weights[N C O], one per expert or head


def as_stacks(arrays: Sequence[Packable], layout: str) -> list[NDArray[Any]]:
    """Return weights of GEMMs as [N O C], whatever axes their layout gives them."""
    found: list[NDArray[Any]] = [np.asarray(array) for array in arrays]
    if layout == TURNED_STACK:
        return [array.swapaxes(1, 2) for array in found]
    return found if layout == STACK else [array[None] for array in found]


class Gemms:
    """GEMMs with packed weights, by the kernels that `tuner` chose.

    `rounded`: they see activations in bfloat16. `narrow`: so rounded, or more, are the results of
    activation functions, by the GEMMs that read them.
    """

    def __init__(self, layout: str, tuner: GemmTuner, *, rounded: bool, narrow: bool) -> None:
        self._layout, self._tuner = layout, tuner
        self._rounded, self._narrow = rounded, narrow

    def single(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """One GEMM."""
        weight, bias = self._weights(operations, pack)
        return Recorded(lambda to, x: (self._product(to, x, weight, Epilogue(bias)),))

    def joined(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """One GEMM with the rows of all weights, whose output is cut."""
        weight, bias = self._weights(operations, pack)
        sizes = [use_of(operation, "weight").num_rows for operation in operations]

        def write(to: Recorder, x: Value) -> Values:
            return self._product(to, x, weight, Epilogue(bias)).cut(sizes)

        return Recorded(write)

    def added(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """A GEMM whose result is added to rows on its way out."""
        weight, bias = self._weights(operations[:1], pack)
        scale = operations[1].number("scale")

        def write(to: Recorder, x: Value, residual: Value) -> Values:
            return (self._product(to, x, weight, Epilogue(bias, residual.rows, scale)),)

        return Recorded(write)

    def activated(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """A GEMM whose result goes through an activation on its way out."""
        weight, bias = self._weights(operations[:1], pack)
        act = str(operations[1].constant("act"))
        epilogue = Epilogue(bias, activation=act, coarse=self._narrow)
        return Recorded(lambda to, x: (self._product(to, x, weight, epilogue),))

    def gated(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """The GEMM of a gated MLP's first two weights, then act(gate) * up."""
        weight, bias = self._weights(operations[:2], pack)
        inner = operations[0].weights[0].shape[0]
        act = str(operations[2].constant("act"))
        formula = gate_formula(act)
        at_once = bias is None and Gemm(weight).can_gate

        def write(to: Recorder, x: Value) -> Values:
            if at_once:
                return (self._gated(to, x, weight, act),)
            both = self._product(to, x, weight, Epilogue(bias))
            gate, up = both.cut((inner, inner))
            out = write_formula(to, formula, gate, up)
            to.give_back(both.buffer, per_logit=both.per_logit)
            return (out,)

        return Recorded(write)

    def by_heads(self, operations: Sequence[Operation], pack: Pack) -> Recorded:
        """A GEMM per head."""
        weight: Packed = pack(operations[0].weights, TURNED_STACK)
        self._tuner.note(weight, rounded=self._rounded)

        def write(to: Recorder, x: Value) -> Values:
            flat = self._product(to, x, weight, Epilogue())
            return (flat.part(0, (weight.count, weight.layout.outputs)),)

        return Recorded(write)

    def _weights(self, operations: Sequence[Operation], pack: Pack) -> tuple[Packed, Floats | None]:
        """Return the weights below one another, and the biases."""
        uses = [use_of(operation, "weight") for operation in operations]
        weight: Packed = pack(uses, self._layout)
        self._tuner.note(weight, rounded=self._rounded)
        if len(operations[0].weights) == 1:
            return weight, None
        return weight, pack([use_of(operation, "bias") for operation in operations], "wide")

    def _product(self, to: Recorder, x: Value, weight: Packed, epilogue: Epilogue) -> Value:
        gemm = self._gemm(weight)
        out = to.new(weight.count * weight.layout.outputs, per_logit=x.per_logit)
        to.calls += gemm.calls(
            x.rows,
            out=out.rows,
            scratch=_scratch(to, x, gemm),
            epilogue=epilogue,
            count=x.count,
        )
        return out

    def _gemm(self, weight: Packed) -> Gemm:
        micro = self._tuner.micro(weight.layout.format, rounded=self._rounded)
        return Gemm(weight, self._rounded, micro)

    def _gated(self, to: Recorder, x: Value, weight: Packed, act: str) -> Value:
        gemm = self._gemm(weight)
        out = to.new(weight.layout.outputs // 2, per_logit=x.per_logit)
        to.calls += gemm.gated_calls(
            x.rows, act, out=out.rows, scratch=_scratch(to, x, gemm), count=x.count
        )
        return out


def _scratch(to: Recorder, x: Value, gemm: Gemm) -> int:
    row_bytes = gemm.scratch_bytes
    return to.scratch(row_bytes, per_logit=x.per_logit) if row_bytes else 0
