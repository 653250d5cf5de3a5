"""The kernels of quantised GEMM: signatures and launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from spaninfer_kernel_launch import (
    Call,
    Int32,
    NamedCalls,
    Pointer,
    Signature,
    TensorMap,
)

from spaninfer_kernels_cuda.gemm.kernels import FLAG_BYTES, ClearArguments, GeneralSizes, Sizes
from spaninfer_kernels_cuda.gemm.maps import map_x
from spaninfer_kernels_cuda.gemm.tuning import Shape


class HopperArguments(NamedTuple):
    """Arguments of quantized_gemm of hopper.cu."""

    out: Pointer
    weight: Pointer
    factors: Pointer
    x: TensorMap
    x_scales: Pointer
    bias: Pointer
    residual: Pointer
    partial: Pointer
    flags: Pointer


class GeneralArguments(NamedTuple):
    """Arguments of quantized_gemm of general.cu."""

    out: Pointer
    weight: Pointer
    factors: Pointer
    x: Pointer
    x_scales: Pointer
    bias: Pointer
    residual: Pointer
    partial: Pointer
    flags: Pointer


class PackArguments(NamedTuple):
    """Addresses, the arguments of quantized_pack."""

    records: Pointer
    codes: Pointer
    scales: Pointer
    shifts: Pointer


class PackSizes(NamedTuple):
    """Sizes, the constants of quantized_pack."""

    rows: Int32
    inner: Int32
    groups: Int32
    gated: Int32


class DequantizeArguments(NamedTuple):
    """Addresses, the arguments of quantized_dequantize."""

    out: Pointer
    weight: Pointer
    factors: Pointer


class DequantizeSizes(NamedTuple):
    """Sizes, the constants of quantized_dequantize."""

    rows: Int32
    inner: Int32
    gated: Int32


GEMM_HOPPER: Final = Signature("quantized_gemm", HopperArguments, Sizes)
GEMM_GENERAL: Final = Signature("quantized_gemm", GeneralArguments, GeneralSizes)
GEMM_CLEAR: Final = Signature("quantized_gemm_clear", ClearArguments)
PACK: Final = Signature("quantized_pack", PackArguments, PackSizes)
DEQUANTIZE: Final = Signature("quantized_dequantize", DequantizeArguments, DequantizeSizes)


class Addresses(NamedTuple):
    """Addresses of a GEMM's arrays; 0 for those that it does not have."""

    out: int
    x: int
    records: int
    factors: int
    bias: int
    residual: int
    workspace: int
    x_scales: int = 0


@dataclass(frozen=True, slots=True)
class General:
    """quantized_gemm of general.cu, loaded."""

    call: Call[GeneralArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        return NamedCalls(((self.call, {"weight": "records", "flags": "workspace"}),))

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = GeneralArguments(
            out=at.out,
            weight=at.records,
            factors=at.factors,
            x=at.x,
            x_scales=at.x_scales,
            bias=at.bias,
            residual=at.residual,
            partial=at.workspace + FLAG_BYTES,
            flags=at.workspace,
        )
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class OnHopper:
    """quantized_gemm of hopper.cu, loaded; and the parameters of x's tensor map.

    Compared by identity, as the key of these maps.
    """

    shape: Shape
    dtype: str
    row_stride: int  # elements from one row of x to the next
    tokens: int  # of a tile
    call: Call[HopperArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        renamed = {"weight": "records", "flags": "workspace", "x": "x_map"}
        return NamedCalls(((self.call, renamed),), {"x_map": ("x", partial(_map_x, self))})

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = HopperArguments(
            out=at.out,
            weight=at.records,
            factors=at.factors,
            x=_map_x(self, at.x),
            x_scales=at.x_scales,
            bias=at.bias,
            residual=at.residual,
            partial=at.workspace + FLAG_BYTES,
            flags=at.workspace,
        )
        self.call(handle, arguments)


@lru_cache(maxsize=4096)
def _map_x(kernel: OnHopper, x: int) -> bytes:
    """Return the tensor map of x at this address."""
    return map_x(x, kernel.dtype, kernel.shape, kernel.row_stride, kernel.tokens)
