"""Weights in 8-bit codes that activations in the same codes are multiplied by.

FP8 and int8 as checkpoints hold them, scales included, or rounded while loading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.scaled_gemm import BLOCK, Code, Codes
from spaninfer_op_reference import QuantizedWeight, WeightFormat, group_scales
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.cuda.kernels.scaled_gemm import CODE_TYPES, Scaled, ScaledKind
from spaninfer_engine.load.packed.packing import Packing

COLUMN_GRAIN = 16  # columns of a weight come in this many
_LAST = {"fp8": 448.0, "int8": 127.0}
_AT_ONCE = 1 << 25  # weights whose float32 intermediates are there at a time


@dataclass(frozen=True, slots=True)
class ScaledLinear:
    """A LinearWeight[N K] of codes with scales."""

    kernels: Kernels
    packed: Scaled

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.packed.codes.nbytes + self.packed.scales.nbytes)

    @property
    def inner(self) -> int:
        """See LinearWeight."""
        return self.packed.codes.shape[1]

    @property
    def x_codes(self) -> Codes:
        """See LinearWeight."""
        return self.packed.kind

    def multiply(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        *,
        gate: Act | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """See LinearWeight."""
        kind = ScaledKind(len(self.packed.codes), self.inner, self.x_codes, gate)
        return self.kernels.scaled.multiply(x, self.packed, kind, bias, residual)

    def __getitem__(self, rows: slice) -> ScaledLinear:
        """Return the rows from `rows.start` to the last; of blocks, from the first row of one."""
        codes, scales, kind = self.packed
        blocked = kind.scales == "blocks"
        assert not blocked or rows.start % BLOCK == 0, "rows of a block share a scale"
        first = rows.start // BLOCK if blocked else rows.start
        return replace(self, packed=Scaled(codes[rows.start :], scales[first:], kind))


def codes_of_packing(packing: Packing) -> Codes | None:
    """Return the codes that weights are rounded to while loading; None of none."""
    known: dict[str | None, Codes] = {"fp8": Codes("fp8"), "w8a8": Codes("int8")}
    return known.get(packing.quantize)


def kept_bits(format: WeightFormat) -> float | None:
    """Return the bits of a weight as GEMMs hold it; None without a kernel."""
    return None if codes_of([format]) is None else 8


# ---- from checkpoints ----------------------------------------------------------------------------


def codes_of(formats: Sequence[WeightFormat]) -> Codes | None:
    """Return the codes in which weights of these formats are multiplied; None where in none."""
    found = {_codes_of(each) for each in formats}
    return found.pop() if len(found) == 1 else None


def _codes_of(format: WeightFormat) -> Codes | None:
    if format.activations is None or format.outer is not None or format.zero != "none":
        return None
    code: Code = "fp8" if format.activations == "e4m3" else "int8"
    if format.group_columns is None and format.group_rows in (1, None):
        return Codes(code)
    if code == "fp8" and (format.group_rows, format.group_columns) == (BLOCK, BLOCK):
        return Codes(code, "blocks")
    return None


def can_stack(shapes: Sequence[tuple[int, ...]], codes: Codes, *, gated: bool) -> bool:
    """Return True if weights[N K], below one another, have whole rows and blocks for kernels.

    Blocks of a gated weight begin anew with its up rows.
    """
    rows = [shape[0] for shape in shapes]
    if shapes[0][1] % COLUMN_GRAIN:
        return False
    if codes.scales == "rows":
        return True
    if gated:
        return len(rows) == 2 or rows[0] % (2 * BLOCK) == 0
    return all(each % BLOCK == 0 for each in rows[:-1])


def pack_stored(
    weights: Sequence[QuantizedWeight],
    codes: Codes,
    kernels: Kernels,
    upload: Callable[[NDArray[Any], Tensor], None],
) -> ScaledLinear:
    """Return weights[N K] below one another, their codes as they are stored."""
    rows, inner = [len(weight.codes) for weight in weights], weights[0].shape[1]
    held = torch.empty((sum(rows), inner), dtype=torch.uint8, device=kernels.device)
    for weight, part in zip(weights, torch.split(held, rows), strict=True):
        upload(np.ascontiguousarray(weight.codes).view(np.uint8), part)
    scales = np.concatenate([_scales(weight, codes) for weight in weights]).astype(np.float32)
    of_rows = torch.from_numpy(scales).to(kernels.device)
    return _linear(kernels, Scaled(held.view(CODE_TYPES[codes.code]), of_rows, codes))


def _linear(kernels: Kernels, packed: Scaled) -> ScaledLinear:
    kernels.scaled.expect(packed.codes.shape[1], packed.kind)
    return ScaledLinear(kernels, packed)


def _scales(weight: QuantizedWeight, codes: Codes) -> NDArray[Any]:
    """Return scales [N] of rows, or those of blocks as they are."""
    if codes.scales == "blocks":
        return np.asarray(weight.scales)
    scales: NDArray[Any] = np.broadcast_to(group_scales(weight)[:, 0], len(weight.codes))
    return scales


# ---- while loading -------------------------------------------------------------------------------


def quantize_weight(weights: Iterable[Tensor], codes: Codes, kernels: Kernels) -> ScaledLinear:
    """Return weights[N K] of floats below one another, each row rounded to codes."""
    parts = [
        _round(rows.float(), codes)
        for weight in weights
        for rows in torch.split(weight, max(1, _AT_ONCE // weight.shape[1]))
    ]
    held = [part.codes.view(torch.uint8) for part in parts]  # torch joins no fp8
    scales = torch.cat([part.scales for part in parts])
    return _linear(kernels, Scaled(torch.cat(held).view(CODE_TYPES[codes.code]), scales, codes))


def _round(weight: Tensor, codes: Codes) -> Scaled:
    """Return the codes of rows: the largest number of each becomes the last code."""
    scales = weight.abs().amax(1) / _LAST[codes.code]
    scales = torch.where(scales == 0, 1.0, scales)
    numbers = weight / scales[:, None]
    if codes.code == "int8":
        numbers.round_()
    return Scaled(numbers.to(CODE_TYPES[codes.code]), scales, codes)
