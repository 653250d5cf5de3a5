"""Decays and rates of the gated delta rule, as a call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, larger, read, smaller, write
from spaninfer_kernels_cpu.elementwise.activations import SIGMOID, activated
from spaninfer_kernels_cpu.errors import check_vector
from spaninfer_kernels_cpu.runtime.call import (
    NUMBERS_PER_TASK,
    Call,
    Matrix,
    row_at,
    tokens_per_task,
)


@dataclass(frozen=True, slots=True)
class _GatesArguments(Arguments):
    a: Matrix
    b: Matrix
    g: Matrix
    beta: Matrix
    a_log: int
    dt_bias: int
    heads: int


def delta_gates_call(
    inputs: tuple[Matrix, Matrix],
    a_log: NDArray[np.float32],
    dt_bias: NDArray[np.float32],
    *,
    out: tuple[Matrix, Matrix],
) -> Call:
    """Write g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b), all [T H], of (a, b).

    The caller keeps a_log[H] and dt_bias[H] alive. Raises KernelError unless they are vectors of
    float32, of the same length.
    """
    check_vector("a_log", a_log, len(a_log))
    check_vector("dt_bias", dt_bias, len(a_log))
    (a, b), (g, beta), heads = inputs, out, len(a_log)
    arguments = _GatesArguments(
        a=a,
        b=b,
        g=g,
        beta=beta,
        a_log=a_log.ctypes.data,
        dt_bias=dt_bias.ctypes.data,
        heads=heads,
    )
    return Call(_gates, arguments, 1, tokens_per_task(heads))


def _gates(arguments: _GatesArguments, tokens: int, task: int) -> None:
    heads = arguments.heads
    some = larger(1, NUMBERS_PER_TASK // heads)
    for head in range(heads):
        pace = math.exp(np.float64(read(FLOAT32, arguments.a_log, head)))
        bias = np.float64(read(FLOAT32, arguments.dt_bias, head))
        for row in range(task * some, smaller(tokens, (task + 1) * some)):
            x = np.float64(read(FLOAT32, row_at(arguments.a, row), head)) + bias
            softplus = (x if x > 0 else 0.0) + math.log1p(math.exp(-abs(x)))
            write(FLOAT32, row_at(arguments.g, row), head, np.float32(-pace * softplus))
            rate = activated(SIGMOID, read(FLOAT32, row_at(arguments.b, row), head))
            write(FLOAT32, row_at(arguments.beta, row), head, rate)
