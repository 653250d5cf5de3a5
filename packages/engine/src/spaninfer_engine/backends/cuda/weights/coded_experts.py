"""Experts' weights as codes on the GPU, in the order of the kernels that multiply by them:
published ones, or rounded while loading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda.quantized_gemm import BLOCK_ROWS, PackedWeight, QuantizedFormat
from spaninfer_kernels_cuda.scaled_gemm import Codes
from spaninfer_op_reference import QuantizedWeight, WeightFormat
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm
from spaninfer_engine.backends.cuda.weights.quantised import (
    format_of,
    kernel_format,
    pack_stored,
    quantize_weight,
)
from spaninfer_engine.backends.rounded_weights import round_to_levels

_BLOCK = 128  # columns, and rows, of FP8 weights that share a scale
_GRAIN = 8  # columns, and rows of gate or up, come in this many


@dataclass(frozen=True, slots=True)
class CodedExperts:
    """The weights of all experts: records uint8 [E ...], factors float32 [E ...] of their rows."""

    records: Tensor
    factors: Tensor
    format: QuantizedFormat

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.records.nbytes + self.factors.nbytes)


def expert_format(formats: Sequence[WeightFormat]) -> QuantizedFormat | None:
    """Return the format in which kernels hold experts of these; None where there is none."""
    found = {_format_of(each) for each in formats}
    return found.pop() if len(found) == 1 else None


def _format_of(format: WeightFormat) -> QuantizedFormat | None:
    if format.values != "e4m3":
        return format_of(format)
    if format.outer is not None or format.zero != "none" or format.permuted:
        return None
    if format.group_columns is None:
        whole = format.group_rows in (1, None)
        return QuantizedFormat(8, None, values="e4m3") if whole else None
    is_block = format.group_columns % _BLOCK == 0
    return QuantizedFormat(8, _BLOCK, values="e4m3") if is_block else None


def can_hold(weights: Sequence[QuantizedWeight]) -> bool:
    """Return True if kernels read weights[E N K] of this shape."""
    _, rows, columns = weights[0].shape
    return columns % _GRAIN == 0 and rows % _GRAIN == 0


def pack_coded(
    weights: Sequence[QuantizedWeight],
    format: QuantizedFormat,
    gemm: QuantizedGemm,
    upload: Callable[[NDArray[Any], Tensor], None],
    *,
    gated: bool,
) -> CodedExperts:
    """Return weights[E N K] of the same experts below one another, in `expert_format` of theirs.

    With `gated` their rows are those of gates above those of up.
    """
    experts = len(weights[0].codes)
    rows, inner = sum(each.shape[1] for each in weights), weights[0].shape[2]
    blocks, *rest = format.records(rows, inner)
    records = torch.empty((experts, blocks, *rest), dtype=torch.uint8, device=gemm.device)
    factors = torch.empty((experts, blocks * BLOCK_ROWS), device=gemm.device)
    for number in range(experts):
        own = [weight[number] for weight in weights]
        packed = pack_stored(own, format, gemm, upload, gated=gated).packed
        records[number].copy_(packed.records)
        factors[number].copy_(packed.factors)
    return CodedExperts(records, factors, format)


# ---- while loading -------------------------------------------------------------------------------


def round_experts(
    numbers: Tensor, asked: QuantizedFormat | Codes | WeightFormat, gemm: QuantizedGemm
) -> Tensor | CodedExperts:
    """Return numbers[E N K], rows in the order of kernels, rounded as other weights are; the
    numbers themselves where kernels cannot read rows of this length.
    """
    experts, rows, inner = numbers.shape
    if inner % _GRAIN or rows % _GRAIN:
        return numbers
    # Blocks of neighbouring experts follow one another where each has whole ones.
    parts = [numbers.flatten(0, 1)] if rows % BLOCK_ROWS == 0 else list(numbers)
    packed = [_round(part, asked, gemm) for part in parts]
    records = torch.cat([each.records for each in packed])
    factors = torch.cat([each.factors for each in packed])
    blocks = len(records) // experts
    shaped = records.view(experts, blocks, *records.shape[1:])
    return CodedExperts(shaped, factors.view(experts, -1), packed[0].format)


def _round(
    numbers: Tensor, asked: QuantizedFormat | Codes | WeightFormat, gemm: QuantizedGemm
) -> PackedWeight:
    """Return numbers[N K] in codes; grids that kernels have no rounding for are made on the host.

    Activations of experts have 16 bits, whatever those of other weights are rounded to.
    """
    if isinstance(asked, WeightFormat):
        kept = kernel_format([asked])
        assert kept is not None, asked
        weight = round_to_levels(numbers.float().cpu().numpy(), asked)
        return pack_stored([weight], kept, gemm, _upload, gated=False).packed
    if isinstance(asked, Codes):
        asked = QuantizedFormat(8, None, values="e4m3" if asked.code == "fp8" else "integer")
    asked = replace(asked, activations="floats")
    return quantize_weight([numbers], asked, gemm, gated=False).packed


def _upload(array: NDArray[Any], to: Tensor) -> None:
    to.copy_(torch.from_numpy(array))
