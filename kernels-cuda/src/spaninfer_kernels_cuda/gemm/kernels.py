"""The kernels of small-M GEMM: signatures and launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from spaninfer_kernel_launch import (
    Call,
    Derived,
    Int32,
    Int64,
    NamedCalls,
    Pointer,
    Signature,
    TensorMap,
)

from spaninfer_kernels_cuda.gemm.maps import map_weight, map_x
from spaninfer_kernels_cuda.gemm.tall import Tall
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape, Tile
from spaninfer_kernels_cuda.gemm.wide import Wide

FLAG_BYTES: Final = 4 * FLAGS  # at the beginning of a workspace; partials of tiles follow


class GeneralArguments(NamedTuple):
    """Arguments of gemm of general.cu."""

    out: Pointer
    weight: Pointer
    x: Pointer
    bias: Pointer
    residual: Pointer
    x_scales: Pointer
    weight_scales: Pointer
    partial: Pointer
    flags: Pointer


class GeneralSizes(NamedTuple):
    """M, N, K, and elements from one row of x to the next."""

    tokens: Int32
    rows: Int32
    inner: Int32
    stride: Int64


class HopperArguments(NamedTuple):
    """Arguments of gemm of hopper.cu."""

    out: Pointer
    weight: TensorMap
    x: TensorMap
    bias: Pointer
    residual: Pointer
    x_scales: Pointer
    weight_scales: Pointer
    partial: Pointer
    flags: Pointer


class WideArguments(NamedTuple):
    """Arguments of gemm of wide.cu, which has no partials."""

    out: Pointer
    weight: TensorMap
    x: TensorMap
    bias: Pointer
    residual: Pointer
    x_scales: Pointer
    weight_scales: Pointer


class TallArguments(NamedTuple):
    """Arguments of gemm of tall.cu, which has neither partials nor scales."""

    out: Pointer
    weight: TensorMap
    x: TensorMap
    bias: Pointer
    residual: Pointer


class Sizes(NamedTuple):
    """M, N and K."""

    tokens: Int32
    rows: Int32
    inner: Int32


class WideSizes(NamedTuple):
    """M, N and K, and tiles of x that a tile of the weight is multiplied by in turn."""

    tokens: Int32
    rows: Int32
    inner: Int32
    band: Int32


class ClearArguments(NamedTuple):
    """Arguments of gemm_clear."""

    flags: Pointer


GEMM_GENERAL: Final = Signature("gemm", GeneralArguments, GeneralSizes)
GEMM_HOPPER: Final = Signature("gemm", HopperArguments, Sizes)
GEMM_WIDE: Final = Signature("gemm", WideArguments, WideSizes)
GEMM_TALL: Final = Signature("gemm", TallArguments, Sizes)
GEMM_CLEAR: Final = Signature("gemm_clear", ClearArguments)


class Addresses(NamedTuple):
    """Addresses of a GEMM's arrays; 0 for those that it does not have."""

    out: int
    x: int
    weight: int
    bias: int
    residual: int
    workspace: int
    x_scales: int = 0
    weight_scales: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Shape, type and strides of x and weight: the tensor maps' parameters beside addresses.

    Compared by identity, as the key of its maps: by value that takes 3 us, a quarter of a call.
    """

    shape: Shape
    dtype: str
    row_stride: int  # elements from one row of x to the next
    gated: bool

    def maps(self, at: Addresses, tile: Tile | Wide | Tall) -> tuple[bytes, bytes]:
        """Return the tensor maps of weight and x."""
        return _map_weight(self, tile.rows, at.weight), _map_x(self, tile.tokens, at.x)

    def derived_maps(self, tile: Tile | Wide | Tall) -> dict[str, Derived]:
        """Return how tensor maps are derived from the addresses of weight and x."""
        return {
            "weight_map": ("weight", partial(_map_weight, self, tile.rows)),
            "x_map": ("x", partial(_map_x, self, tile.tokens)),
        }


_MAPPED: Final = {"weight": "weight_map", "x": "x_map", "flags": "workspace"}
"""Names of the values that kernels with tensor maps read."""


@lru_cache(maxsize=4096)
def _map_weight(operands: Operands, rows: int, at: int) -> bytes:
    """Return the tensor map of a weight at this address, in boxes of that many rows."""
    shape, dtype = operands.shape, operands.dtype
    return map_weight(at, dtype, shape, rows, gated=operands.gated)


@lru_cache(maxsize=4096)
def _map_x(operands: Operands, tokens: int, at: int) -> bytes:
    """Return the tensor map of an x at this address, in boxes of that many tokens."""
    return map_x(at, operands.dtype, operands.shape, operands.row_stride, tokens)


@dataclass(frozen=True, slots=True)
class General:
    """gemm of general.cu, loaded."""

    call: Call[GeneralArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        return NamedCalls(((self.call, {"flags": "workspace"}),))

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = GeneralArguments(
            out=at.out,
            weight=at.weight,
            x=at.x,
            bias=at.bias,
            residual=at.residual,
            x_scales=at.x_scales,
            weight_scales=at.weight_scales,
            partial=at.workspace + FLAG_BYTES,
            flags=at.workspace,
        )
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True)
class OnHopper:
    """gemm of hopper.cu, loaded."""

    operands: Operands
    tile: Tile
    call: Call[HopperArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        return NamedCalls(((self.call, _MAPPED),), self.operands.derived_maps(self.tile))

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        weight, x = self.operands.maps(at, self.tile)
        arguments = HopperArguments(
            out=at.out,
            weight=weight,
            x=x,
            bias=at.bias,
            residual=at.residual,
            x_scales=at.x_scales,
            weight_scales=at.weight_scales,
            partial=at.workspace + FLAG_BYTES,
            flags=at.workspace,
        )
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True)
class WideTiles:
    """gemm of wide.cu, loaded."""

    operands: Operands
    tile: Wide
    call: Call[WideArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        return NamedCalls(((self.call, _MAPPED),), self.operands.derived_maps(self.tile))

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        weight, x = self.operands.maps(at, self.tile)
        scales = at.x_scales, at.weight_scales
        self.call(handle, WideArguments(at.out, weight, x, at.bias, at.residual, *scales))


@dataclass(frozen=True, slots=True)
class TallTiles:
    """gemm of tall.cu, loaded."""

    operands: Operands
    tile: Tall
    call: Call[TallArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as in `Addresses`."""
        return NamedCalls(((self.call, _MAPPED),), self.operands.derived_maps(self.tile))

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        weight, x = self.operands.maps(at, self.tile)
        self.call(handle, TallArguments(at.out, weight, x, at.bias, at.residual))
