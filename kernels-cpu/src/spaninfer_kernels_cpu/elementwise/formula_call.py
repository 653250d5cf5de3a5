"""Formulas as calls: what is computed number by number, activations and gates among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.arguments import Arguments, Float32
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.elements import larger, smaller
from spaninfer_kernels_cpu.codegen.exponential import tanh
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.elementwise.activations import (
    ACTIVATIONS,
    SIGMOID,
    Activation,
    activated,
    clamped_swiglu,
)
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    TOKENS,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)


@dataclass(frozen=True, slots=True)
class Formula(Constant):
    """A function of x, y and a number: one of _FORMULAS, or an activation, gated or not."""

    name: str
    activation: Activation | None = None


def _code_of(chosen: Formula) -> Any:
    activation: Any = chosen.activation
    match chosen.name:
        case "gate":
            return lambda formula, x, y, number: activated(activation, x) * y  # noqa: ARG005
        case "activation":
            return lambda formula, x, y, number: activated(activation, x)  # noqa: ARG005
    return _FORMULAS[chosen.name]


@specialized(_code_of)
def computed(formula: Formula, x: np.float32, y: np.float32, number: np.float32) -> np.float32:
    """Return a formula's value."""
    raise NotImplementedError("exists in Numba functions only")


_FORMULAS = {
    "add": lambda formula, x, y, number: x + y * number,  # noqa: ARG005
    "scale": lambda formula, x, y, number: x * number,  # noqa: ARG005
    "softcap": lambda formula, x, y, number: number * tanh(x / number),  # noqa: ARG005
    "clamped_swiglu": lambda formula, x, y, number: clamped_swiglu(x, y),  # noqa: ARG005
}


@dataclass(frozen=True, slots=True)
class _FormulaArguments(Arguments):
    """A task is one of `columns` parts of a row, or a few rows."""

    x: Matrix
    y: Matrix
    out: Matrix
    channels: int
    columns: int
    number: Float32


@variants
def _over_columns(formula: Formula) -> Kernel:
    """Return the kernel of a formula; a task is some columns of a row, or rows."""

    def elementwise(arguments: _FormulaArguments, tokens: int, task: int) -> None:
        channels, columns, number = arguments.channels, arguments.columns, arguments.number
        some = larger(1, NUMBERS_PER_TASK // channels)
        first = channels * (task % columns) // columns
        count = channels * (task % columns + 1) // columns - first
        begin = task // columns * some
        for row in range(begin, smaller(tokens, begin + some)):
            x = floats_at(row_at(arguments.x, row) + 4 * first, count)
            y = floats_at(row_at(arguments.y, row) + 4 * first, count)
            out = floats_at(row_at(arguments.out, row) + 4 * first, count)
            for i in range(count):
                out[i] = computed(formula, x[i], y[i], number)

    return elementwise


def formula_call(
    formula: Formula,
    inputs: tuple[Matrix, ...],
    *,
    out: Matrix,
    channels: int,
    number: float = 0.0,
    count: int = TOKENS,
) -> Call:
    """Write a formula of x[T C], of y[T C] if it reads that, and of a number to out[T C]."""
    columns = -(-channels // NUMBERS_PER_TASK)
    arguments = _FormulaArguments(
        x=inputs[0],
        y=inputs[-1],
        out=out,
        channels=channels,
        columns=columns,
        number=number,
    )
    return Call(_over_columns(formula), arguments, columns, tokens_per_task(channels), count)


ADD, SCALE, SOFTCAP = Formula("add"), Formula("scale"), Formula("softcap")
"""x + y * number; x * number; number * tanh(x / number)."""

SIGMOID_GATE = Formula("gate", SIGMOID)
"""sigmoid(x) * y."""


def gate_formula(act: str) -> Formula:
    """Return act(x) * y; of act, which is one of GATES."""
    if act == "clamped_swiglu":
        return Formula(act)
    return Formula("gate", ACTIVATIONS[act])


def activation_formula(act: str) -> Formula:
    """Return act(x)."""
    return Formula("activation", ACTIVATIONS[act])
