"""`experts`, the gated MLPs of a mixture of experts over the tokens that chose them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.elementwise.activations import GATES
from spaninfer_kernels_cpu.errors import DTypeError, KernelError, ShapeError
from spaninfer_kernels_cpu.moe.experts_call import ExpertCounts, ExpertWeights, num_segments
from spaninfer_kernels_cpu.moe.route_call import Routes
from spaninfer_kernels_cpu.quantisation.layout import Layout
from spaninfer_kernels_cpu.quantisation.packed import Packed
from spaninfer_kernels_cpu.runtime.call import Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_COUNTS: Final = ExpertCounts(tokens=0, pairs=1, segments=2)


def experts(
    x: Floats,
    gate_up: Packed,
    down: Packed,
    ids: Ints,
    weights: Floats,
    act: str,
    *,
    out: Floats,
    gate_up_bias: Floats | None = None,
    down_bias: Floats | None = None,
) -> None:
    """Write a mixture of experts into out[T C]: MLPs ids[T k] of x[T C], by weights[T k].

    The MLP of an expert is down (act(gate x) * up x). gate_up and down are `pack_stack`s with a
    weight per expert: [2I C], the rows of gate above those of up, and [C I]; gate_up_bias[E 2I] and
    down_bias[E C] join the products. `act` may be "clamped_swiglu", too. ids are int32 below the
    number of experts, the rest is float32. Works on every usable CPU. Raises KernelError for
    arguments that do not fit.
    """
    _check_arrays(x, ids, weights, out)
    _check_weights(gate_up, down, act, x.shape[1])
    _check_ids(ids, down.count)
    if not ids.size:
        return
    tokens, top_k = ids.shape
    mlps = ExpertWeights(gate_up, down, top_k, act, gate_up_bias=gate_up_bias, down_bias=down_bias)
    scratch = np.empty(tokens * mlps.scratch_bytes, np.uint8)
    calls = mlps.calls(
        Matrix.of(x),
        Routes(ids.ctypes.data, weights.ctypes.data),
        out=Matrix.of(out),
        scratch=scratch.ctypes.data,
        capacity=tokens,
        counts=_COUNTS,
    )
    counts = (tokens, ids.size, num_segments(tokens, top_k, down.count))
    shared_thread_pool().run(Script(calls), counts)


def _check_arrays(x: Floats, ids: Ints, weights: Floats, out: Floats) -> None:
    """Raise unless the arrays have the types and shapes that `experts` describes."""
    arrays = {"x": x, "ids": ids, "weights": weights, "out": out}
    for name, array in arrays.items():
        dtype = np.int32 if name == "ids" else np.float32
        if array.dtype != dtype:
            raise DTypeError(f"{name} holds {array.dtype}; the kernel takes {np.dtype(dtype)}")
        if array.ndim != 2 or not array.flags.c_contiguous or len(array) != len(x):
            raise ShapeError(
                f"{name}: expected contiguous axes (T C) or (T k) with T = {len(x)} rows of x, got "
                f"shape {array.shape}"
            )
    if ids.shape != weights.shape or out.shape != x.shape:
        raise ShapeError(
            f"ids {ids.shape} and weights {weights.shape}, or x {x.shape} and out {out.shape}, "
            "differ"
        )
    if not out.flags.writeable:
        raise KernelError("out is read-only; give an array that can be written")


def _check_weights(gate_up: Packed, down: Packed, act: str, channels: int) -> None:
    """Raise unless the weights are those of gated MLPs of so many channels."""
    if act not in GATES:
        raise ShapeError(f"act is {act!r}; allowed are {', '.join(GATES)}")
    inner = down.layout.channels
    first, second = (
        Layout(down.layout.format, *shape) for shape in ((2 * inner, channels), (channels, inner))
    )
    for name, packed, layout in (("gate_up", gate_up, first), ("down", down, second)):
        if packed.count != down.count or packed.layout != layout:
            raise ShapeError(
                f"{name}: expected {down.count} weights [{layout.outputs} {layout.channels}] "
                f"packed as {layout.format}"
            )


def _check_ids(ids: Ints, num_experts: int) -> None:
    """Raise for an expert that there is not."""
    if ids.size and not 0 <= ids.min() <= ids.max() < num_experts:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise KernelError(f"ids holds {wrong}; there are {num_experts} experts")
