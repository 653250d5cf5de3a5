"""Tiles: the matrix registers of Intel's AMX, 16 rows of 64 bytes, for Numba functions to use.

A product of tiles adds to every one of 16 by 16 sums in one instruction: `sums` (int32 or float32)
row m, column n, the bytes or bfloat16 of row m of `left` times those of column n of `right`, which
holds the four bytes (or two bfloat16) of a column side by side, as a panel of weights does.

Linux hands out the registers on demand: `permitted` asks for the whole process.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.vectors import intrinsic

TILE_ROWS: Final = 16
TILE_BYTES: Final = 64  # of a row

_CONFIG_BYTES: Final = 64
_SYSCALL_ARCH_PRCTL: Final = 158
_REQUEST_PERMISSION: Final = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA: Final = 18  # XFEATURE_XTILEDATA


@cache
def permitted() -> bool:
    """Ask Linux to let this process use tiles; return whether it does.

    A process that never asked is killed by its first tile instruction.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None, use_errno=True)
    answer: int = library.syscall(
        ctypes.c_long(_SYSCALL_ARCH_PRCTL), ctypes.c_long(_REQUEST_PERMISSION), _TILE_DATA
    )
    return answer == 0


@dataclass(frozen=True, slots=True)
class Tile(Constant):
    """One of the eight registers."""

    number: int


SUMS: Final = (Tile(0), Tile(1), Tile(2), Tile(3))
"""Upper rows by left and right columns, lower rows by left and right columns."""

UPPER, LOWER, LEFT, RIGHT = Tile(4), Tile(5), Tile(6), Tile(7)
"""Two tiles of rows of activations, two of columns of weights."""


@intrinsic
def configure(_context: Any, _address: Any, _upper: Any, _lower: Any, _width: Any) -> Any:
    """Set the sizes: `upper` and `lower` rows of activations, of which `width` bytes count.

    At `address` are 64 bytes for what the instruction reads. Every tile becomes zero.
    """

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, upper, lower, width = arguments
        steps = b.udiv(width, v.I64(4))
        full = v.I64(TILE_BYTES)
        rows = (upper, upper, lower, lower, upper, lower, steps, steps)
        widths = (full, full, full, full, width, width, full, full)
        for offset in range(0, _CONFIG_BYTES, 8):
            v.store(b, v.I64(1 if offset == 0 else 0), v.at(b, address, offset))  # palette 1
        for tile in range(8):
            v.store(b, b.trunc(widths[tile], v.I16), v.at(b, address, 16 + 2 * tile))
            v.store(b, b.trunc(rows[tile], v.I8), v.at(b, address, 48 + tile))
        v.call(b, "llvm.x86.ldtilecfg", b.inttoptr(address, v.POINTER))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def release(_context: Any) -> Any:
    """Give the registers back: until then the system saves them whenever it switches threads."""

    def emit(context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        v.call(b, "llvm.x86.tilerelease")
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def zero(_context: Any, tile: Any) -> Any:
    """Set a tile to zero."""

    def emit(context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        v.call(b, "llvm.x86.tilezero", v.I8(tile.value.number))
        return context.get_dummy_value()

    return types.void(tile), emit


@intrinsic
def load(_context: Any, tile: Any, _address: Any, _stride: Any) -> Any:
    """Read the rows of a tile, `stride` bytes apart."""
    return _move("tileloadd64", tile)


@intrinsic
def load_passing(_context: Any, tile: Any, _address: Any, _stride: Any) -> Any:
    """Read rows as `load` does, but such as pass by: what is in the L1 cache stays there."""
    return _move("tileloaddt164", tile)


@intrinsic
def store(_context: Any, tile: Any, _address: Any, _stride: Any) -> Any:
    """Write the rows of a tile, `stride` bytes apart."""
    return _move("tilestored64", tile)


@intrinsic
def add_bytes(_context: Any, sums: Any, left: Any, right: Any) -> Any:
    """Add the products of signed bytes of `left` and unsigned ones of `right`."""
    return _add("tdpbsud", sums, left, right)


@intrinsic
def add_bf16(_context: Any, sums: Any, left: Any, right: Any) -> Any:
    """Add the products of bfloat16."""
    return _add("tdpbf16ps", sums, left, right)


@device_function
def keep_awake() -> None:
    """Multiply two tiles for nothing: what `UPPER`, `LEFT` and the first of the sums hold is lost.

    The unit sleeps after 0.55 µs without a product, and the next one waits 0.24 µs (Granite Rapids;
    16 cycles for this one). Loads of tiles do not keep it awake.
    """
    add_bf16(SUMS[0], UPPER, LEFT)


def _move(instruction: str, tile: Any) -> Any:
    """Return signature and code of an instruction between a tile and memory."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, address, stride = arguments
        pointer = b.inttoptr(address, v.POINTER)
        v.call(b, f"llvm.x86.{instruction}", v.I8(tile.value.number), pointer, stride)
        return context.get_dummy_value()

    return types.void(tile, types.int64, types.int64), emit


def _add(instruction: str, *tiles: Any) -> Any:
    """Return signature and code of an instruction on sums and two factors."""

    def emit(context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        v.call(b, f"llvm.x86.{instruction}", *(v.I8(tile.value.number) for tile in tiles))
        return context.get_dummy_value()

    return types.void(*tiles), emit
