"""`delta_rule` and `convolve`, linear attention over states that lie in spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.checks import demand
from spaninfer_kernels_cpu.delta_rule.convolve_call import convolve_call
from spaninfer_kernels_cpu.delta_rule.delta_rule_call import DeltaRows, delta_rule_call
from spaninfer_kernels_cpu.delta_rule.state_plan import (
    StatePlan,
    check_pieces,
    demand_pieces,
    plan_states,
)
from spaninfer_kernels_cpu.errors import KernelError, ShapeError
from spaninfer_kernels_cpu.runtime.call import ITEMS, Call, Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """query[T K D], key[T K D], value[T H E], decays g[T H] and rates beta[T H], in float32."""

    query: Floats
    key: Floats
    value: Floats
    g: Floats
    beta: Floats


def delta_rule(inputs: DeltaInputs, states: Floats, pieces: Ints, *, out: Floats) -> None:
    """Write the gated delta rule of a step into out[T H E], updating states[S H D E].

    pieces[P 4] (int32) are rows [first, last), the span of the state in front of them, -1 for one
    of zeros, and the span of the one behind: see spaninfer_op_reference.delta_rule. A piece that
    begins with the span that the one before it wrote continues its sequence; other sequences
    share no span that one of them writes. Rows of no piece are left as they are. Works on every
    usable CPU. Raises KernelError for arguments that do not fit.
    """
    _check_inputs(inputs, states, out)

    def call(plan: StatePlan) -> Call:
        arrays = (inputs.query, inputs.key, inputs.value, inputs.g, inputs.beta)
        rows = DeltaRows(*map(Matrix.of, arrays))
        key_heads = inputs.query.shape[1]
        return delta_rule_call(rows, key_heads, states, plan, out=Matrix.of(out))

    _run(call, pieces, len(inputs.query), len(states))


def convolve(
    x: Floats, weight: Floats, states: Floats, pieces: Ints, *, out: Floats, silu: bool = False
) -> None:
    """Write the causal convolution of x[T C] by weight[n C], and its SiLU if asked, into out[T C].

    states[S n-1 C] hold the inputs in front of a piece, and then those behind it. `pieces`, and
    what is demanded of them, are as in `delta_rule`; `out` is other memory than x. weight is that
    of spaninfer_op_reference.convolve, transposed.
    """
    demand("x", x, np.float32, "T C", ordered=2)
    _demand_out(out, "T C", x.shape)
    demand("weight", weight, np.float32, "n C", ordered=2)
    if np.may_share_memory(x, out):
        raise KernelError("out shares memory with x; give an array of its own")
    if weight.shape[1] != x.shape[1]:
        raise ShapeError(f"weight {weight.shape} and x {x.shape} differ in C")

    def call(plan: StatePlan) -> Call:
        return convolve_call(Matrix.of(x), weight, states, plan, out=Matrix.of(out), silu=silu)

    _run(call, pieces, len(x), len(states))


def _check_inputs(inputs: DeltaInputs, states: Floats, out: Floats) -> None:
    """Raise unless arrays have the shapes that `delta_rule` describes, and fit together."""
    if states.ndim != 4:
        raise ShapeError(f"states: expected axes (S H D E), got shape {states.shape}")
    _, heads, key_size, value_size = states.shape
    demand("query", inputs.query, np.float32, "T K D", ordered=3)
    tokens, key_heads, _ = inputs.query.shape
    expected = {
        "query": (tokens, key_heads, key_size),
        "key": (tokens, key_heads, key_size),
        "value": (tokens, heads, value_size),
        "g": (tokens, heads),
        "beta": (tokens, heads),
    }
    for name, shape in expected.items():
        array = getattr(inputs, name)
        demand(name, array, np.float32, "T H E" if len(shape) == 3 else "T H", ordered=len(shape))
        if array.shape != shape:
            raise ShapeError(f"{name} has shape {array.shape}, need {shape} by query and states")
    _demand_out(out, "T H E", expected["value"])


def _demand_out(out: Floats, axes: str, shape: tuple[int, ...]) -> None:
    demand("out", out, np.float32, axes, ordered=len(shape))
    if out.shape != shape:
        raise ShapeError(f"out has shape {out.shape}, need {shape}")
    if not out.flags.writeable:
        raise KernelError("out is read-only; give an array that can be written")


def _run(call: Callable[[StatePlan], Call], pieces: Ints, num_rows: int, num_spans: int) -> None:
    """Run a call for these pieces, after checking them."""
    demand_pieces(pieces)
    begins = plan_states(pieces)
    check_pieces(pieces, begins, num_rows, num_spans)
    words = np.array([pieces.ctypes.data, begins.ctypes.data], np.int64)
    plan = StatePlan(ITEMS, words.ctypes.data, words.ctypes.data + words.itemsize)
    script = Script([call(plan)])
    shared_thread_pool().run(script, [num_rows, 0, len(begins) - 1])
