"""Vectors of 512 bits as values of Numba functions, and the few operations that kernels need.

`Vector` is the type of such a value inside `njit` code; the functions emit LLVM IR into a builder
and are what intrinsics (`dot_product`, `register_tile`) are made of. A vector is as wide as an
AVX-512 register whatever the CPU: LLVM splits it into two AVX registers or four of NEON, so that
one layout of the weights and one source serve all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

BITS = 512
Builder = Any
Value = Any


class BFloatType(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloatType)

    def __hash__(self) -> int:
        return hash(BFloatType)


I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()
BF16 = BFloatType()
POINTER = ir.PointerType()

F32X16 = ir.VectorType(F32, 16)
I32X16 = ir.VectorType(I32, 16)
I16X32 = ir.VectorType(I16, 32)
I16X16 = ir.VectorType(I16, 16)
I8X64 = ir.VectorType(I8, 64)
BF16X32 = ir.VectorType(BF16, 32)


class Vector(types.Type):
    """Numba's name for an LLVM vector."""

    def __init__(self, lanes: ir.VectorType) -> None:
        self.lanes = lanes
        super().__init__(name=f"Vector({lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.lanes)  # type: ignore[no-untyped-call]


FLOATS = Vector(F32X16)
INTS = Vector(I32X16)


def intrinsic(emitter: Callable[..., Any]) -> Any:
    """Make a function of `njit` code out of one that returns a signature and an emitter of IR.

    Numba's own, of a type that says nothing: calls look nothing like what the emitter takes.
    """
    return numba_intrinsic(emitter)


# ---- memory ------------------------------------------------------------------------------------


def load(b: Builder, kind: ir.Type, address: Value) -> Value:
    """Return the scalar or vector at an address (i64, bytes) of any alignment."""
    return b.load(b.inttoptr(address, POINTER), align=1, typ=kind)


def load_bf16(b: Builder, address: Value) -> Value:
    """Return sixteen bfloat16 at an address as float32."""
    bits = b.zext(load(b, _I16X16, address), I32X16)
    return b.bitcast(b.shl(bits, constant(I32X16, 16)), F32X16)


def store(b: Builder, value: Value, address: Value) -> None:
    """Write a scalar or vector to an address of any alignment."""
    b.store(value, b.inttoptr(address, POINTER), align=1)


def at(b: Builder, address: Value, offset: int) -> Value:
    """Return the address `offset` bytes further."""
    return b.add(address, I64(offset)) if offset else address


def prefetch(b: Builder, address: Value, *, for_writing: bool = False, nearness: int = 3) -> None:
    """Ask for the cache line at an address that will be used soon; it need not be one of ours.

    `nearness`: 3 is the nearest cache, 2 the second.
    """
    what = I32(int(for_writing)), I32(nearness), I32(1)
    call(b, "llvm.prefetch.p0", b.inttoptr(address, POINTER), *what)


# ---- lanes -------------------------------------------------------------------------------------


def constant(kind: ir.VectorType, number: float) -> Value:
    """Return the vector whose lanes all hold `number`."""
    return ir.Constant(kind, [number] * kind.count)


def splat(b: Builder, scalar: Value, count: int = 16) -> Value:
    """Return a vector of `count` lanes that all hold `scalar`."""
    kind = ir.VectorType(scalar.type, count)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _indices([0] * count))


def halves(b: Builder, vector: Value) -> tuple[Value, Value]:
    """Return the lower and the upper lanes."""
    count = vector.type.count
    low, high = _indices(range(count // 2)), _indices(range(count // 2, count))
    return b.shuffle_vector(vector, vector, low), b.shuffle_vector(vector, vector, high)


def lanes_of(kind: ir.IntType) -> ir.VectorType:
    """Return the type of sixteen lanes of a kind of integer."""
    return ir.VectorType(kind, 16)


def joined(b: Builder, low: Value, high: Value) -> Value:
    """Return the lanes of both, those of `low` first."""
    return b.shuffle_vector(low, high, _indices(range(2 * low.type.count)))


def shuffled(b: Builder, low: Value, high: Value, lanes: Any) -> Value:
    """Return the lanes of these numbers; those of `high` count on from those of `low`."""
    return b.shuffle_vector(low, high, _indices(lanes))


def every_second(b: Builder, vector: Value, first: int) -> Value:
    """Return lanes `first`, `first` + 2, ..."""
    return b.shuffle_vector(vector, vector, _indices(range(first, vector.type.count, 2)))


def _indices(numbers: Any) -> ir.Constant:
    lanes = list(numbers)
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)


# ---- arithmetic --------------------------------------------------------------------------------


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """Return x * y + z of float32 lanes, rounded once where the CPU can."""
    return call(b, "llvm.fmuladd.v16f32", x, y, z)


def to_float(b: Builder, ints: Value) -> Value:
    """Return int32 lanes as float32."""
    return b.sitofp(ints, F32X16)


def float16_lanes(b: Builder, bits: Value) -> Value:
    """Return the float16 that are sixteen int16 lanes as float32."""
    return b.fpext(b.bitcast(bits, _F16X16), F32X16)


def to_bf16(b: Builder, floats: Value) -> Value:
    """Return float32 lanes as bfloat16, ties to even, of a CPU that has an instruction for it."""
    return b.fptrunc(floats, _BF16X16)


def even_bf16(b: Builder, pairs: Value) -> Value:
    """Return the lower bfloat16 of each 32-bit lane as float32."""
    return b.bitcast(b.shl(pairs, constant(I32X16, 16)), F32X16)


def odd_bf16(b: Builder, pairs: Value) -> Value:
    """Return the upper bfloat16 of each 32-bit lane as float32."""
    return b.bitcast(b.and_(pairs, constant(I32X16, 0xFFFF0000)), F32X16)


# ---- LLVM intrinsics ---------------------------------------------------------------------------

_F16X16 = ir.VectorType(ir.HalfType(), 16)
_I32X8, _I16X16, _I8X32 = ir.VectorType(I32, 8), ir.VectorType(I16, 16), ir.VectorType(I8, 32)

_I32X4, _I8X16 = ir.VectorType(I32, 4), ir.VectorType(I8, 16)
_BF16X16 = ir.VectorType(BF16, 16)
_F32X4, _BF16X8 = ir.VectorType(F32, 4), ir.VectorType(BF16, 8)
_VOID = ir.VoidType()

INTRINSICS: dict[str, ir.FunctionType] = {
    "llvm.fmuladd.v16f32": ir.FunctionType(F32X16, [F32X16] * 3),
    "llvm.prefetch.p0": ir.FunctionType(_VOID, [POINTER, I32, I32, I32]),
    "llvm.fmuladd.f32": ir.FunctionType(F32, [F32] * 3),
    "llvm.vector.reduce.add.v16i32": ir.FunctionType(I32, [I32X16]),
    "llvm.vector.reduce.umax.v16i32": ir.FunctionType(I32, [I32X16]),
    "llvm.x86.avx2.pmadd.ub.sw": ir.FunctionType(_I16X16, [_I8X32, _I8X32]),
    "llvm.x86.avx2.pmadd.wd": ir.FunctionType(_I32X8, [_I16X16, _I16X16]),
    "llvm.x86.avx2.pshuf.b": ir.FunctionType(_I8X32, [_I8X32] * 2),
    "llvm.x86.avx512.pshuf.b.512": ir.FunctionType(I8X64, [I8X64] * 2),
    "llvm.x86.avx512.vpdpbusd.256": ir.FunctionType(_I32X8, [_I32X8, _I8X32, _I8X32]),
    "llvm.x86.avx512.vpdpbusd.512": ir.FunctionType(I32X16, [I32X16, I8X64, I8X64]),
    "llvm.x86.avx512.vpdpwssd.256": ir.FunctionType(_I32X8, [_I32X8, _I16X16, _I16X16]),
    "llvm.x86.avx512.vpdpwssd.512": ir.FunctionType(I32X16, [I32X16, I16X32, I16X32]),
    "llvm.aarch64.neon.usdot.v4i32.v16i8": ir.FunctionType(_I32X4, [_I32X4, _I8X16, _I8X16]),
    "llvm.aarch64.neon.bfdot.v4f32.v8bf16": ir.FunctionType(_F32X4, [_F32X4, _BF16X8, _BF16X8]),
    "llvm.aarch64.neon.tbl1.v16i8": ir.FunctionType(_I8X16, [_I8X16] * 2),
    "llvm.x86.ldtilecfg": ir.FunctionType(_VOID, [POINTER]),
    "llvm.x86.tilerelease": ir.FunctionType(_VOID, []),
    "llvm.x86.tilezero": ir.FunctionType(_VOID, [I8]),
    "llvm.x86.tileloadd64": ir.FunctionType(_VOID, [I8, POINTER, I64]),
    "llvm.x86.tileloaddt164": ir.FunctionType(_VOID, [I8, POINTER, I64]),
    "llvm.x86.tilestored64": ir.FunctionType(_VOID, [I8, POINTER, I64]),
    "llvm.x86.tdpbsud": ir.FunctionType(_VOID, [I8] * 3),
    "llvm.x86.tdpbf16ps": ir.FunctionType(_VOID, [I8] * 3),
    "llvm.x86.avx512bf16.dpbf16ps.512": ir.FunctionType(F32X16, [F32X16, BF16X32, BF16X32]),
}
"""What `call` may call: name and signature, as of LLVM 22."""


def call(b: Builder, name: str, *arguments: Value) -> Value:
    """Call one of INTRINSICS."""
    find: Any = cgutils.get_or_insert_function
    function = find(b.module, INTRINSICS[name], name)
    return b.call(function, arguments)


def check_intrinsics() -> None:
    """Raise ImportError unless this LLVM knows every intrinsic by the signature written above.

    LLVM changes signatures between releases; it rewrites some old declarations silently and takes
    unknown names for ordinary functions, which would fail when the kernel is linked, or worse.
    """
    declared = [
        f"declare {kind.return_type} @{name}({', '.join(map(str, kind.args))})"
        for name, kind in INTRINSICS.items()
    ]
    text = str(binding.parse_assembly("\n".join(declared)))
    understood = re.sub(r" (immarg|readonly|captures\(none\))", "", text).splitlines()
    for line in declared:
        known = [i for i, text in enumerate(understood) if text.startswith(line)]
        if not known or understood[known[0] - 1].startswith("; Unknown"):
            version = ".".join(map(str, binding.llvm_version_info))
            raise ImportError(
                f"LLVM {version} of this llvmlite does not have '{line}'; "
                "spaninfer-kernels-cpu needs LLVM 22, which numba 0.68 brings"
            )


check_intrinsics()  # half a millisecond, before any kernel is made
