"""The weights of experts in the one form that kernels read: gate and up rows in turn, 8 of each.

    gate_up      gate[E I C] and up[E I C], or [gate | up][E 2I C]    ──► [E I/8 2 8 C]
    gate_up_io   [gate | up][E C 2I]                                  ──► the same
    down_io      down[E I C]                                          ──► [E C I]

An MLP that all tokens share, S times as wide as an expert, becomes S more experts behind them:

    gate_up_shared   arrays of gate_up, then gate[S*I C] and up[S*I C]  ──► [E+S I/8 2 8 C]
    down_shared      down[E C I], then down[C S*I]                      ──► [E+S C I]

Numbers pass through a buffer for a few experts at a time, so that there is no second copy of a
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from spaninfer_kernels_cuda.moe import GRAIN
from torch import Tensor

from spaninfer_engine.dummy_array import DummyArray
from spaninfer_engine.ops.operation import Host, Packable

GATE_UP, GATE_UP_IO, DOWN_IO = "gate_up", "gate_up_io", "down_io"
GATE_UP_SHARED, DOWN_SHARED = "gate_up_shared", "down_shared"
DOWN = "down"  # as in the checkpoint, where it is no codes
LAYOUTS = frozenset({GATE_UP, GATE_UP_IO, DOWN_IO, GATE_UP_SHARED, DOWN_SHARED})

_BUFFER_BYTES = 64 << 20

Fill = Callable[[Packable, Tensor], None]


def pack_experts(
    arrays: Sequence[Packable], layout: str, fill: Fill, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the arrays of all experts in one of `LAYOUTS`; `fill` copies one to a tensor."""
    if layout in (GATE_UP_SHARED, DOWN_SHARED):
        return _pack_with_shared(arrays, layout, fill, dtype=dtype, device=device)
    swaps = layout in (GATE_UP_IO, DOWN_IO)
    shapes = [_swapped(array.shape) if swaps else tuple(array.shape) for array in arrays]
    experts, rows, *rest = shapes[0]
    packed = torch.empty(experts, len(arrays) * rows, *rest, dtype=dtype, device=device)
    if isinstance(arrays[0], DummyArray):  # in any order it is the same noise
        fill(arrays[0], packed)
        return packed
    parts = [packed] if layout == DOWN_IO else _gates_and_ups(packed, len(arrays))
    _fill_parts(arrays, parts, fill, swaps=swaps)
    return packed


def _pack_with_shared(
    arrays: Sequence[Packable], layout: str, fill: Fill, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the arrays of experts, and behind them those of an MLP that all tokens share."""
    count = 2 if layout == GATE_UP_SHARED else 1
    own, shared = arrays[:-count], arrays[-count:]
    experts, rows, columns = own[0].shape
    rows *= len(own)
    inner = rows // 2 if layout == GATE_UP_SHARED else columns
    more = shared[0].shape[0 if layout == GATE_UP_SHARED else 1] // inner
    packed = torch.empty(experts + more, rows, columns, dtype=dtype, device=device)
    if isinstance(own[0], DummyArray):
        fill(own[0], packed)
        return packed
    first, last = packed[:experts], packed[experts:]
    if layout == DOWN_SHARED:
        _fill_parts(own, [first], fill, swaps=False)
        cut = [_numbers(each).reshape(rows, more, inner).swapaxes(0, 1) for each in shared]
        _fill_parts(cut, [last], fill, swaps=False)
        return packed
    _fill_parts(own, _gates_and_ups(first, len(own)), fill, swaps=False)
    cut = [_numbers(each).reshape(more, inner, columns) for each in shared]
    _fill_parts(cut, _gates_and_ups(last, count), fill, swaps=False)
    return packed


def _gates_and_ups(packed: Tensor, arrays: int) -> list[Tensor]:
    """Return the places of gates and ups in packed[E 2I ...]: [E 2 I/8 8 ...], or one for each."""
    in_turn = packed.view(len(packed), -1, 2, GRAIN, *packed.shape[2:]).transpose(1, 2)
    return [in_turn] if arrays == 1 else list(in_turn.unbind(1))


def _numbers(array: Packable) -> Host:
    assert not isinstance(array, DummyArray), "as all arrays of a use are"
    return array


def _fill_parts(
    arrays: Sequence[Packable], parts: Sequence[Tensor], fill: Fill, *, swaps: bool
) -> None:
    for array, part in zip(arrays, parts, strict=True):
        _fill_by_experts(_numbers(array), part, fill, swaps=swaps)


def _fill_by_experts(array: Host, part: Tensor, fill: Fill, *, swaps: bool) -> None:
    """Copy array[E ...] to `part`, in whose order of axes it may be swapped."""
    bytes_of_expert = part[0].numel() * part.itemsize
    at_once = max(1, _BUFFER_BYTES // bytes_of_expert)
    buffer = part.new_empty(min(at_once, len(part)), *array.shape[1:])
    for first in range(0, len(part), at_once):
        some = part[first : first + at_once]
        read = buffer[: len(some)]
        fill(array[first : first + at_once], read)
        some.copy_((read.mT if swaps else read).reshape(some.shape))


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    experts, inputs, outputs = shape
    return experts, outputs, inputs
