"""GEMMs with quantised weights on torch tensors: prepared when a size first comes, and kept."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from spaninfer_kernels_cuda import quantized_gemm
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.quantized_gemm import PackedWeight, QuantizedFormat, Shape
from spaninfer_kernels_cuda.scaled_gemm import Codes
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels

_KEPT = 4096  # prepared launches of a kind


class WeightKind(NamedTuple):
    """The kind of a weight[N K], for which kernels are compiled: sizes, format and activation."""

    outputs: int
    inner: int
    format: QuantizedFormat
    gate: Act | None


def codes_of_x(format: QuantizedFormat) -> Codes | None:
    """Return the codes that x is quantised to for a weight in this format; None where it is not."""
    return Codes("fp8") if format.activations == "e4m3" else None


class QuantizedGemm:
    """Launches for the weights of one model; those of few tokens multiply codes.

    Where tokens are many, and for batch invariance, the weight is dequantised first. Weights that x
    is quantised for never are: cuBLAS would have to multiply what x was rounded to as well.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._kinds: set[WeightKind] = set()
        self._gemm = lru_cache(_KEPT)(self._prepare)
        self._dequantize = lru_cache(_KEPT)(self._prepare_dequantize)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._kernels.device

    def forget(self) -> None:
        """Prepare every launch anew when it comes next."""
        self._gemm.cache_clear()
        self._dequantize.cache_clear()

    def prepare_every_size(self) -> None:
        """Prepare the weights that came so far for all numbers of tokens."""
        gpu = self._kernels.gpu
        for kind in tuple(self._kinds):
            gated = kind.gate is not None
            for rows in quantized_gemm.rows_of_tiles(
                kind.outputs, kind.inner, kind.format, gpu.arch, gpu.shared_bytes, gated=gated
            ):
                if self._multiplies_codes(rows, kind):
                    self._gemm(rows, kind, kind.inner)
                else:
                    self._dequantize(kind.outputs, kind.inner, kind.format, gated)

    def expect(self, weight: PackedWeight) -> None:
        """Have norms write the codes that x is quantised to for this weight."""
        codes = codes_of_x(weight.format)
        if codes is not None:
            self._kernels.scaled.expect(weight.inner, codes)

    def multiply(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None,
        gate: Act | None,
        residual: Tensor | None,
    ) -> Tensor:
        """Return x[M K] @ weight[N K].T + bias[N], gated, or added to residual[M N] in place."""
        kind = WeightKind(weight.outputs, weight.inner, weight.format, gate)
        self._kinds.add(kind)
        if not self._multiplies_codes(len(x), kind):
            return self._multiply_dense(x, weight, kind, bias, residual)
        kernels, out = self._kernels, residual
        if out is None:
            out = kernels.empty(len(x), kind.outputs // (1 if kind.gate is None else 2))
        codes = codes_of_x(kind.format)
        x_scales: Tensor | None = None
        if codes is not None:
            x, x_scales, _ = kernels.scaled.quantize_rows(x, codes)
        self._gemm(len(x), kind, x.stride(0)).launch(
            x.data_ptr(),
            weight.records.data_ptr(),
            weight.factors.data_ptr(),
            out=out.data_ptr(),
            workspace=kernels.workspace,
            bias=0 if bias is None else bias.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            x_scales=0 if x_scales is None else x_scales.data_ptr(),
            stream=kernels.stream,
        )
        return out

    def _multiply_dense(
        self,
        x: Tensor,
        weight: PackedWeight,
        kind: WeightKind,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        kernels = self._kernels
        numbers = kernels.empty(kind.outputs, kind.inner)
        gated = kind.gate is not None
        self._dequantize(kind.outputs, kind.inner, kind.format, gated).launch(
            weight.records.data_ptr(),
            weight.factors.data_ptr(),
            out=numbers.data_ptr(),
            stream=kernels.stream,
        )
        out = kernels.dense_linear(x, numbers, bias)
        if kind.gate is not None:
            return kernels.activate_gates(out, kind.gate)
        return out if residual is None else residual.add_(out)

    def _multiplies_codes(self, rows: int, kind: WeightKind) -> bool:
        kernels, shape = self._kernels, Shape(rows, kind.outputs, kind.inner)
        if kernels.batch_invariant and codes_of_x(kind.format) is None:
            return False
        return quantized_gemm.is_faster(
            shape, kind.format, kernels.element, kernels.gpu.arch, gated=kind.gate is not None
        )

    def _prepare(
        self, rows: int, kind: WeightKind, row_stride: int
    ) -> quantized_gemm.PreparedQuantizedGemm:
        prepared = quantized_gemm.prepare(
            Shape(rows, kind.outputs, kind.inner),
            kind.format,
            dtype=self._kernels.element,
            gpu=self._kernels.gpu,
            gate=kind.gate,
            row_stride=row_stride,
            tile=self._invariant_tile(kind) if self._kernels.batch_invariant else None,
        )
        assert prepared.workspace_bytes <= self._kernels.workspace_bytes, kind
        return prepared

    def _invariant_tile(self, kind: WeightKind) -> quantized_gemm.Tile:
        gpu, gated = self._kernels.gpu, kind.gate is not None
        return quantized_gemm.invariant_tile(
            kind.outputs, kind.format, gpu.arch, gpu.shared_bytes, gated=gated
        )

    def _prepare_dequantize(
        self, outputs: int, inner: int, format: QuantizedFormat, gated: bool
    ) -> quantized_gemm.PreparedDequantize:
        return quantized_gemm.prepare_dequantize(
            outputs,
            inner,
            format,
            dtype=self._kernels.element,
            gpu=self._kernels.gpu,
            gated=gated,
        )

    def pack(
        self,
        format: QuantizedFormat,
        codes: Tensor,
        scales: Tensor,
        shifts: Tensor,
        factors: Tensor,
        *,
        gated: bool,
    ) -> PackedWeight:
        """Return codes uint8 [N K] in the kernels' order, with numbers of 16 bits [N groups]."""
        outputs, inner = codes.shape
        prepared = quantized_gemm.prepare_pack(
            outputs, inner, format, gpu=self._kernels.gpu, gated=gated
        )
        records = torch.empty(prepared.records_shape, dtype=torch.uint8, device=codes.device)
        scales, shifts = scales.contiguous(), shifts.contiguous()
        addresses = (each.data_ptr() for each in (records, codes, scales, shifts))
        prepared.start(self._kernels.stream, quantized_gemm.PackArguments(*addresses))
        order = torch.from_numpy(quantized_gemm.row_order(outputs, gated=gated)).to(codes.device)
        padded = torch.where(order < 0, 0.0, factors[order.clamp(min=0)])
        torch.cuda.current_stream(codes.device).synchronize()  # codes and scales may go
        return PackedWeight(records, padded.contiguous(), format, outputs, inner, gated)
