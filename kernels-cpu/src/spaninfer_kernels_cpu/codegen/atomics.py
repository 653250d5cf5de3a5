"""Atomic operations on int64 words, and calls by address.

Addresses are whole numbers, in bytes. All operations are ordered (sequentially consistent).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from spaninfer_kernels_cpu.codegen.vectors import intrinsic

_ORDER = "seq_cst"
_I32, _I64 = ir.IntType(32), ir.IntType(64)

_room: Any = cgutils.alloca_once


@intrinsic
def load(_context: Any, _address: Any) -> Any:
    """Return the word at an address."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        return b.load_atomic(_pointer(b, arguments[0]), _ORDER, align=8)

    return types.int64(types.int64), emit


@intrinsic
def store(_context: Any, _address: Any, _value: Any) -> Any:
    """Write a word."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, value = arguments
        b.store_atomic(value, _pointer(b, address), _ORDER, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def add(_context: Any, _address: Any, _value: Any) -> Any:
    """Add to a word; return what was there before."""
    return _read_modify_write("add")


@intrinsic
def exchange(_context: Any, _address: Any, _value: Any) -> Any:
    """Write a word; return what was there before."""
    return _read_modify_write("xchg")


@intrinsic
def replace(_context: Any, _address: Any, _old: Any, _new: Any) -> Any:
    """Write `new` where the word is `old`; return whether it was."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, old, new = arguments
        return b.extract_value(b.cmpxchg(_pointer(b, address), old, new, _ORDER), 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@intrinsic
def fence(_context: Any) -> Any:
    """Let nothing before this be seen after what follows, nor the other way round."""

    def emit(context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        b.fence(_ORDER)
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def pause(_context: Any) -> Any:
    """Tell the CPU that this thread spins, where it has an instruction for that."""

    def emit(context: Any, b: Any, _signature: Any, _arguments: Any) -> Any:
        if b.module.triple.startswith(("x86", "i686")):
            find: Any = cgutils.get_or_insert_function
            kind = ir.FunctionType(ir.VoidType(), [])
            b.call(find(b.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def call_kernel(_context: Any, _function: Any, _words: Any, _rows: Any, _task: Any) -> Any:
    """Call the kernel at an address (see `call`)."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 3)
        b.call(b.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


@intrinsic
def call_system(_context: Any, _function: Any, _number: Any) -> Any:
    """Call a C function of one 32-bit integer, such as usleep, at an address."""

    def emit(context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        function, number = arguments
        kind = ir.FunctionType(ir.VoidType(), [_I32])
        b.call(b.inttoptr(function, kind.as_pointer()), [b.trunc(number, _I32)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def read_clock(_context: Any, _function: Any, _clock: Any) -> Any:
    """Return what a clock of the system shows, in ns; `function` is clock_gettime's address."""

    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        function, clock = arguments
        pair = ir.ArrayType(_I64, 2)  # struct timespec: seconds, ns
        room = _room(b, pair)
        kind = ir.FunctionType(_I32, [_I32, pair.as_pointer()])
        b.call(b.inttoptr(function, kind.as_pointer()), [b.trunc(clock, _I32), room])
        seconds, rest = (b.extract_value(b.load(room), i) for i in range(2))
        return b.add(b.mul(seconds, _I64(10**9)), rest)

    return types.int64(types.int64, types.int64), emit


def _read_modify_write(operation: str) -> Any:
    def emit(_context: Any, b: Any, _signature: Any, arguments: Any) -> Any:
        address, value = arguments
        return b.atomic_rmw(operation, _pointer(b, address), value, _ORDER)

    return types.int64(types.int64, types.int64), emit


def _pointer(b: Any, address: Any) -> Any:
    return b.inttoptr(address, _I64.as_pointer())
