"""The weights of experts in the one form that kernels read: gate and up rows in turn, 8 of each.

    gate_up      gate[E I C] and up[E I C], or [gate | up][E 2I C]    ──► [E I/8 2 8 C]
    gate_up_io   [gate | up][E C 2I]                                  ──► the same
    down_io      down[E I C]                                          ──► [E C I]

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
DOWN = "down"  # as in the checkpoint, where it is no codes
LAYOUTS = frozenset({GATE_UP, GATE_UP_IO, DOWN_IO})

_BUFFER_BYTES = 64 << 20

Fill = Callable[[Packable, Tensor], None]


def pack_experts(
    arrays: Sequence[Packable], layout: str, fill: Fill, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the arrays of all experts in one of `LAYOUTS`; `fill` copies one to a tensor."""
    swaps = layout in (GATE_UP_IO, DOWN_IO)
    shapes = [_swapped(array.shape) if swaps else tuple(array.shape) for array in arrays]
    experts, rows, *rest = shapes[0]
    packed = torch.empty(experts, len(arrays) * rows, *rest, dtype=dtype, device=device)
    if isinstance(arrays[0], DummyArray):  # in any order it is the same noise
        fill(arrays[0], packed)
        return packed
    parts = [packed]
    if layout != DOWN_IO:
        in_turn = packed.view(experts, -1, 2, GRAIN, *rest).transpose(1, 2)  # [E 2 I/8 8 ...]
        parts = [in_turn] if len(arrays) == 1 else list(in_turn.unbind(1))
    for array, part in zip(arrays, parts, strict=True):
        assert not isinstance(array, DummyArray), "as all arrays of a use are"
        _fill_by_experts(array, part, fill, swaps=swaps)
    return packed


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
