"""Weights packed for the kernels: as numbers, rounded to codes, or in the codes they come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat
from spaninfer_kernels_cuda.scaled_gemm import Codes
from spaninfer_op_reference import (
    QuantizedWeight,
    WeightFormat,
    dequantize_weight,
)
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm
from spaninfer_engine.backends.cuda.weights import scaled
from spaninfer_engine.backends.cuda.weights.coded_experts import (
    CodedExperts,
    can_hold,
    expert_format,
    pack_coded,
    round_experts,
)
from spaninfer_engine.backends.cuda.weights.experts import DOWN, GATE_UP, LAYOUTS, pack_experts
from spaninfer_engine.backends.cuda.weights.linear import GATED_GEMM, GEMM, LinearWeight
from spaninfer_engine.backends.cuda.weights.quantised import (
    kernel_format,
    pack_stored,
    quantize_weight,
)
from spaninfer_engine.backends.rounded_weights import round_to_levels
from spaninfer_engine.ops.operation import Packable

COLUMN_GRAIN: Final = 8  # columns of weights that are multiplied as codes
GEMMS: Final = {"linear": GEMM, "gated_linear": GATED_GEMM}

Rounding: TypeAlias = QuantizedFormat | Codes | WeightFormat
"""The format that weights are rounded to while they are loaded."""


@dataclass(frozen=True, slots=True)
class WeightForms:
    """The forms of GEMMs' weights: what they are rounded to, or whether some come as codes."""

    rounding: Rounding | None = None
    has_codes: bool = False


AS_STORED: Final = WeightForms()
"""Numbers that remain numbers."""


class WeightPacker:
    """Packs the weights of a model; `plain` packs numbers as torch's operators read them."""

    def __init__(
        self,
        kernels: Kernels,
        gemm: QuantizedGemm,
        plain: Callable[[Sequence[Packable], str], Tensor],
        upload: Callable[[Packable, Tensor], None],
        quantize: Rounding | None,
    ) -> None:
        self._kernels, self._gemm, self._quantize = kernels, gemm, quantize
        self._plain, self._upload = plain, upload

    def expanded_layout(self, layout: str) -> str:
        """Return where weights without codes lie: as in the checkpoint, but for experts' gates."""
        is_as_stored = layout == DOWN or layout in GEMMS.values()
        return "plain" if self._quantize is None and is_as_stored else layout

    def pack(self, arrays: Sequence[Packable], layout: str) -> Any:  # Tensor or LinearWeight
        """Return weights on the device, in the kernels' dtype unless the layout is float32."""
        if self._quantize is not None and layout in GEMMS.values():
            return self._rounded(arrays, self._quantize, gated=layout == GATED_GEMM)
        if layout == DOWN or layout in LAYOUTS:
            return self._numbers_of_experts(arrays, layout)
        if layout == "float32":
            (array,) = arrays
            packed = torch.empty(array.shape, dtype=torch.float32, device=self._kernels.device)
            self._upload(array, packed)
            return packed
        return self._plain(arrays, layout)

    def _rounded(
        self,
        arrays: Sequence[Packable],
        format: Rounding,
        *,
        gated: bool,
    ) -> Tensor | LinearWeight:
        """Round weights to codes, one after the other; none whose rows kernels cannot read.

        Grids that GEMMs have no codes of are made on the host, and held as published ones are.
        """
        if arrays[0].shape[1] % _column_grain(format):
            return self._plain(arrays, GEMM)
        if isinstance(format, WeightFormat):
            kept = kernel_format([format])
            assert kept is not None, format
            weights = [round_to_levels(np.asarray(array), format) for array in arrays]
            return self._stored(weights, format=kept, gated=gated)
        tensors = (self._plain([array], GEMM) for array in arrays)
        if isinstance(format, Codes):
            return scaled.quantize_weight(tensors, format, self._kernels)
        return quantize_weight(tensors, format, self._gemm, gated=gated)

    def packer_of(
        self, formats: Sequence[WeightFormat], layout: str
    ) -> Callable[[Sequence[QuantizedWeight]], Any] | None:
        """Return what packs weights in these formats for GEMMs with their codes.

        None where no GEMM has their codes, and where another format was requested.
        """
        if self._quantize is not None or layout not in (*GEMMS.values(), GATE_UP, DOWN):
            return None
        if layout in (GATE_UP, DOWN):
            of_experts = expert_format(formats)
            if of_experts is None:
                return None
            return partial(self._experts, format=of_experts, gated=layout == GATE_UP)
        gated = layout == GATED_GEMM
        codes = scaled.codes_of(formats)
        if codes is not None and self._kernels.scaled.is_there:
            return partial(self._codes, codes=codes, gated=gated)
        format = kernel_format(formats)
        if format is None:
            return None
        return partial(self._stored, format=format, gated=gated)

    def _codes(
        self, weights: Sequence[QuantizedWeight], *, codes: Codes, gated: bool
    ) -> Tensor | LinearWeight:
        if scaled.can_stack([weight.shape for weight in weights], codes, gated=gated):
            return scaled.pack_stored(weights, codes, self._kernels, self._upload)
        return self._plain([dequantize_weight(weight) for weight in weights], GEMM)

    def _stored(
        self, weights: Sequence[QuantizedWeight], *, format: QuantizedFormat, gated: bool
    ) -> Tensor | LinearWeight:
        if weights[0].shape[1] % COLUMN_GRAIN:
            return self._plain([dequantize_weight(weight) for weight in weights], GEMM)
        return pack_stored(weights, format, self._gemm, self._upload, gated=gated)

    def _numbers_of_experts(self, arrays: Sequence[Packable], layout: str) -> Tensor | CodedExperts:
        packed: Tensor
        if layout == DOWN:
            packed = self._plain(arrays, "plain")
        else:
            packed = pack_experts(
                arrays, layout, self._upload, dtype=self._kernels.dtype, device=self._kernels.device
            )
        if self._quantize is None or packed.ndim < 3:  # biases
            return packed
        return round_experts(packed, self._quantize, self._gemm)

    def _experts(
        self, weights: Sequence[QuantizedWeight], *, format: QuantizedFormat, gated: bool
    ) -> Tensor | CodedExperts:
        if can_hold(weights):
            return pack_coded(weights, format, self._gemm, self._upload, gated=gated)
        numbers = [dequantize_weight(weight) for weight in weights]
        packed: Tensor = self.pack(numbers, GATE_UP if gated else "plain")
        return packed


def _column_grain(format: Rounding) -> int:
    """Return the grain of columns of weights that are rounded to this format."""
    if isinstance(format, QuantizedFormat):
        return format.column_grain
    return scaled.COLUMN_GRAIN if isinstance(format, Codes) else COLUMN_GRAIN
