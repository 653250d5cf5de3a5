"""GEMMs of 8-bit codes with scales on torch tensors: activations are quantised in front of them.

What a launch needs beyond addresses is prepared when a size first comes, and kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from spaninfer_kernels_cuda import quantize, scaled_gemm
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.scaled_gemm import Codes, Shape
from torch import Tensor

if TYPE_CHECKING:
    from spaninfer_engine.backends.cuda.kernels.kernels import Kernels

_KEPT = 4096  # prepared launches of a kind
CODE_TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


class ScaledKind(NamedTuple):
    """The kind of a weight[N K], for which kernels are compiled: sizes, codes and activation."""

    outputs: int
    inner: int
    codes: Codes
    gate: Act | None


class Scaled(NamedTuple):
    """Codes of rows, and their scales as `scaled_gemm` reads them."""

    codes: Tensor
    scales: Tensor
    kind: Codes


class ScaledGemm:
    """Launches for the weights of one model."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._kinds: set[ScaledKind] = set()
        self._wanted: dict[int, Codes] = {}  # by K: codes that rows are multiplied in
        self._last: tuple[Tensor, Scaled] | None = None  # rows whose codes are there already
        self._gemm = lru_cache(_KEPT)(self._prepare)
        self._quantize = lru_cache(_KEPT)(self._prepare_quantize)

    @property
    def is_there(self) -> bool:
        """True if there are kernels: invariant ones for Hopper alone."""
        return not self._kernels.batch_invariant or self._invariant_tile is not None

    @property
    def _invariant_tile(self) -> scaled_gemm.Wide | None:
        gpu = self._kernels.gpu
        return scaled_gemm.invariant_tile(gpu.arch, gpu.shared_bytes)

    def cache_clear(self) -> None:
        """Prepare every launch anew when it comes next."""
        self._last = None
        self._gemm.cache_clear()
        self._quantize.cache_clear()

    def prepare_every_size(self) -> None:
        """Prepare the weights that came so far for all numbers of tokens."""
        for kind in tuple(self._kinds):
            for rows in self._rows_of_tiles(kind):
                self._gemm(rows, kind)

    def expect(self, inner: int, codes: Codes) -> None:
        """Have norms of `inner` channels write codes, for a weight with that many columns."""
        self._wanted.setdefault(inner, codes)

    def expected(self, inner: int) -> Codes | None:
        """Return the codes that norms of `inner` channels write; None where they write none."""
        return self._wanted.get(inner)

    def coded_rows(self, x: Tensor) -> Scaled | None:
        """Return room for the codes of x[M K], which may be about to be written beside them.

        None where no weight expects any.
        """
        codes = self._wanted.get(x.shape[-1]) if x.dim() == 2 else None
        self._last = None if codes is None else (x, self._room(x, codes))
        return None if self._last is None else self._last[1]

    def quantize_rows(self, x: Tensor, codes: Codes) -> Scaled:
        """Return the rows of x[M K] in codes."""
        if self._last is not None and self._last[0] is x and self._last[1].kind == codes:
            return self._last[1]
        assert not x.is_meta, "rows of which only codes were written, and others since"
        x = x.contiguous()
        scaled = self._room(x, codes)
        out = scaled.codes.data_ptr(), scaled.scales.data_ptr()
        self._quantize(*x.shape, codes).launch(x.data_ptr(), out=out, stream=self._kernels.stream)
        return scaled

    def _room(self, x: Tensor, codes: Codes) -> Scaled:
        rows, channels = x.shape
        shape = (rows,) if codes.group is None else (-(-channels // codes.group), rows)
        device = self._kernels.device
        return Scaled(
            torch.empty(x.shape, dtype=CODE_TYPES[codes.code], device=device),
            torch.empty(shape, dtype=torch.float32, device=device),
            codes,
        )

    def multiply(
        self,
        x: Tensor,
        weight: Scaled,
        kind: ScaledKind,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        """Return x[M K] @ weight[N K].T + bias[N], gated, or added to residual[M N] in place."""
        self._kinds.add(kind)
        kernels, out = self._kernels, residual
        if out is None:
            out = kernels.empty(len(x), kind.outputs // (1 if kind.gate is None else 2))
        rows = self.quantize_rows(x, kind.codes)
        self._gemm(len(x), kind).launch(
            rows.codes.data_ptr(),
            weight.codes.data_ptr(),
            out=out.data_ptr(),
            workspace=kernels.workspace,
            bias=0 if bias is None else bias.data_ptr(),
            residual=0 if residual is None else residual.data_ptr(),
            x_scales=rows.scales.data_ptr(),
            weight_scales=weight.scales.data_ptr(),
            stream=kernels.stream,
        )
        return out

    def _prepare(self, rows: int, kind: ScaledKind) -> scaled_gemm.PreparedGemm:
        prepared = scaled_gemm.prepare(
            Shape(rows, kind.outputs, kind.inner),
            kind.codes,
            dtype=self._kernels.element,
            gpu=self._kernels.gpu,
            gate=kind.gate,
            tile=self._invariant_tile if self._kernels.batch_invariant else None,
        )
        assert prepared.workspace_bytes <= self._kernels.workspace_bytes, kind
        return prepared

    def _prepare_quantize(
        self, rows: int, channels: int, codes: Codes
    ) -> quantize.PreparedQuantize:
        options = quantize.QuantizeOptions(codes.code, codes.group)
        kernels = self._kernels
        return quantize.prepare(
            options, rows=rows, channels=channels, dtype=kernels.element, gpu=kernels.gpu
        )

    def _rows_of_tiles(self, kind: ScaledKind) -> tuple[int, ...]:
        """Return numbers of rows that have every tile between them."""
        gpu = self._kernels.gpu
        return scaled_gemm.rows_of_tiles(
            kind.outputs,
            kind.inner,
            kind.codes,
            gpu.arch,
            gpu.shared_bytes,
            gated=kind.gate is not None,
        )
