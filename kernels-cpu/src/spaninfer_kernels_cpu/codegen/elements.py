"""Kinds of numbers in memory, and how Numba functions read and write one of them.

    FLOAT32, BFLOAT16, FLOAT16     activations, keys and values
    INT8, UINT4                    keys and values quantised, each with a zero and a scale per token
                                   and head: x = (code - zero) * scale; two uint4 codes to a byte,
                                   the even one in the low half

Loops over `read` and `write` become vector code: LLVM knows the widening and the rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from spaninfer_kernels_cpu.codegen import vectors as v
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.vectors import Builder, Value, intrinsic


@dataclass(frozen=True, slots=True)
class Element(Constant):
    """A kind of number; `first` and `last` are the ends of a code's range, 0 for floats."""

    name: str
    bits: int
    first: int = 0
    last: int = 0

    @property
    def is_quantised(self) -> bool:
        """True if numbers have a zero point and a scale."""
        return self.last != 0


FLOAT32 = Element("float32", 32)
BFLOAT16 = Element("bfloat16", 16)
FLOAT16 = Element("float16", 16)
INT8 = Element("int8", 8, -128, 127)
UINT4 = Element("uint4", 4, 0, 15)

ELEMENTS = {element.name: element for element in (FLOAT32, BFLOAT16, FLOAT16, INT8, UINT4)}
"""By name."""


@intrinsic
def read(_context: Any, element: Any, _address: Any, _index: Any) -> Any:
    """Return number `index` of those at an address as float32; of quantised values, the code."""
    kind: Element = element.value

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, address, index = arguments
        if kind == UINT4:
            byte = b.load(_place(b, v.I8, address, b.lshr(index, v.I64(1))), align=1, typ=v.I8)
            shift = b.shl(b.trunc(b.and_(index, v.I64(1)), v.I8), v.I8(2))
            return b.uitofp(b.and_(b.lshr(byte, shift), v.I8(15)), v.F32)
        stored = _STORED[kind.name]
        number = b.load(_place(b, stored, address, index), align=1, typ=stored)
        if kind == INT8:
            return b.sitofp(number, v.F32)
        if kind == BFLOAT16:
            return b.bitcast(b.shl(b.zext(number, v.I32), v.I32(16)), v.F32)
        return b.fpext(number, v.F32) if kind == FLOAT16 else number

    return types.float32(element, types.int64, types.int64), emit


@intrinsic
def read_index(_context: Any, _address: Any, _index: Any) -> Any:
    """Return number `index` of the int32 at an address, as int64."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        number = b.load(_place(b, v.I32, *arguments), align=1, typ=v.I32)
        return b.sext(number, v.I64)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def read_int64(_context: Any, _address: Any, _index: Any) -> Any:
    """Return number `index` of the int64 at an address."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return b.load(_place(b, v.I64, *arguments), align=1, typ=v.I64)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def write(_context: Any, element: Any, _address: Any, _index: Any, _number: Any) -> Any:
    """Write a float32 as number `index` of those at an address, rounded to the nearest, ties even.

    For floats; codes are written as bytes.
    """
    kind: Element = element.value
    assert not kind.is_quantised

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        _, address, index, number = arguments
        if kind == BFLOAT16:
            number = _bf16_bits(b, number)
        elif kind == FLOAT16:
            number = b.fptrunc(number, ir.HalfType())
        b.store(number, _place(b, number.type, address, index), align=1)
        return context.get_dummy_value()

    return types.void(element, types.int64, types.int64, types.float32), emit


@intrinsic
def write_index(_context: Any, _address: Any, _index: Any, _number: Any) -> Any:
    """Write an int64 as number `index` of the int32 at an address."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, index, number = arguments
        b.store(b.trunc(number, v.I32), _place(b, v.I32, address, index), align=1)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), emit


@intrinsic
def larger(_context: Any, x: Any, _y: Any) -> Any:
    """Return the larger of two int64 or float32; of NaN and of zeros of both signs, either.

    Loops over `max` stay scalar: it must return NaN, and compiler flags do not change that.
    It also takes Numba long: a function of its own for every pair of types.
    """
    return _chosen(">", x)


@intrinsic
def smaller(_context: Any, x: Any, _y: Any) -> Any:
    """Return the smaller of two int64 or float32; of NaN and of zeros of both signs, either."""
    return _chosen("<", x)


def _chosen(order: str, kind: Any) -> Any:
    """Return signature and emitter of what returns its first argument if that comes so."""
    number = types.float32 if kind == types.float32 else types.int64

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        x, y = arguments
        if number == types.int64:
            return b.select(b.icmp_signed(order, x, y), x, y)
        flags = ("nnan", "nsz")
        return b.select(b.fcmp_ordered(order, x, y, flags=flags), x, y, flags=flags)

    return number(number, number), emit


@intrinsic
def bits_of(_context: Any, _x: Any) -> Any:
    """Return the bits of a float32, as int32."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return b.bitcast(arguments[0], v.I32)

    return types.int32(types.float32), emit


@intrinsic
def float_of(_context: Any, _bits: Any) -> Any:
    """Return the float32 that has these bits, an int32."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return b.bitcast(arguments[0], v.F32)

    return types.float32(types.int32), emit


_STORED = {"float32": v.F32, "bfloat16": v.I16, "float16": ir.HalfType(), "int8": v.I8}


def _place(b: Builder, kind: ir.Type, address: Value, index: Value) -> Value:
    """Return the pointer to a number. An index into a pointer is what LLVM's vectoriser sees
    through; the same sum of integers is not.
    """
    return b.gep(b.inttoptr(address, ir.PointerType()), [index], source_etype=kind)


def _bf16_bits(b: Builder, number: Value) -> Value:
    """Return the bits of a float32 as bfloat16, ties to even; NaN stays NaN.

    Not LLVM's fptrunc: without an instruction for it, that is a call per number.
    """
    bits = b.bitcast(number, v.I32)
    odd = b.and_(b.lshr(bits, v.I32(16)), v.I32(1))
    rounded = b.lshr(b.add(bits, b.add(odd, v.I32(0x7FFF))), v.I32(16))
    quiet = b.or_(b.lshr(bits, v.I32(16)), v.I32(64))
    is_nan = b.fcmp_unordered("uno", number, number)
    return b.trunc(b.select(is_nan, quiet, rounded), v.I16)
