"""Products of bytes summed by fours, in the ways of the instruction sets.

Each way says how it wants activations (signed codes, four to a step) to lie in memory, and adds
the products of 16 outputs' weights (unsigned codes) to int32 sums. All are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from llvmlite import ir

from spaninfer_kernels_cpu.codegen.vectors import (
    I8X64,
    I16X32,
    I32,
    Builder,
    Value,
    at,
    call,
    constant,
    every_second,
    halves,
    joined,
    load,
    splat,
)

_I32X32 = ir.VectorType(I32, 32)


class Dots(Protocol):
    """A way to multiply bytes and sum by fours."""

    wide_activations: bool
    """Activations for 8-bit weights are int16 in the order 0 2 1 3, not int8 in order."""

    def weights(self, b: Builder, codes: Value) -> tuple[Value, ...]:
        """Return 8-bit codes (64 bytes: 16 outputs by 4) in the form that `add` takes."""

    def activations(self, b: Builder, address: Value) -> tuple[Value, ...]:
        """Return four activations' codes in every lane, in the form that `add` takes."""

    def add(self, b: Builder, sums: Value, w: Sequence[Value], x: Sequence[Value]) -> Value:
        """Return sums + w . x."""

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        """Return sums + products of int16, by twos."""

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        """Return entries of a table of 16 bytes, codes as bytes."""

    def start_small(self, sums: Value) -> Value | None:
        """Return what `add_small` may add to before `end_small` is due, as often as 16 bits hold
        the sums of two products (`Codes.pairs_at_once`).
        """

    def add_small(self, b: Builder, running: Value | None, w: Value, x: Value) -> Value:
        """Return running + w . x; both as bytes."""

    def end_small(self, b: Builder, sums: Value, running: Value) -> Value:
        """Return sums + what was added since `start_small(sums)`."""


class _Bytes(ABC):
    """The common part of paths that take bytes as they are."""

    wide_activations = False

    def weights(self, _b: Builder, codes: Value) -> tuple[Value, ...]:
        return (codes,)

    def activations(self, b: Builder, address: Value) -> tuple[Value, ...]:
        return (spread(b, address),)

    def add(self, b: Builder, sums: Value, w: Sequence[Value], x: Sequence[Value]) -> Value:
        return self.dot(b, sums, w[0], x[0])

    def start_small(self, sums: Value) -> Value | None:
        return sums

    def add_small(self, b: Builder, running: Value | None, w: Value, x: Value) -> Value:
        return self.dot(b, running, w, x)

    def end_small(self, _b: Builder, _sums: Value, running: Value) -> Value:
        return running

    @abstractmethod
    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        """Return entries of a table of 16 bytes."""

    @abstractmethod
    def dot(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        """Return sums + w . x."""


class _Vnni512(_Bytes):
    """AVX-512 VNNI: one instruction."""

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        return call(b, "llvm.x86.avx512.pshuf.b.512", _repeated(table, I8X64), codes)

    def dot(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return call(b, "llvm.x86.avx512.vpdpbusd.512", sums, w, x)

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return call(b, "llvm.x86.avx512.vpdpwssd.512", sums, w, x)


class _Vnni256(_Bytes):
    """AVX-VNNI: one instruction per half."""

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        return _by_halves(b, "llvm.x86.avx2.pshuf.b", _repeated(table, I8X64), codes)

    def dot(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return _by_halves(b, "llvm.x86.avx512.vpdpbusd.256", sums, w, x)

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return _by_halves(b, "llvm.x86.avx512.vpdpwssd.256", sums, w, x)


class _Portable:
    """Pairs of 16-bit products, which LLVM finds instructions for: pmaddwd on x86, smlal on Arm.

    Even and odd bytes are widened apart. (llvm.vector.partial.reduce.add looks made for this, but
    leaves open which products meet in a lane, and the expansions differ.)
    """

    wide_activations = True

    def weights(self, b: Builder, codes: Value) -> tuple[Value, ...]:
        pairs = b.bitcast(codes, I16X32)
        return b.and_(pairs, constant(I16X32, 255)), b.lshr(pairs, constant(I16X32, 8))

    def activations(self, b: Builder, address: Value) -> tuple[Value, ...]:
        return tuple(b.bitcast(spread(b, at(b, address, 4 * i)), I16X32) for i in range(2))

    def add(self, b: Builder, sums: Value, w: Sequence[Value], x: Sequence[Value]) -> Value:
        even, odd = (self.pairs(b, *factors) for factors in zip(w, x, strict=True))
        return b.add(sums, b.add(even, odd))

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        found = constant(I8X64, table[0])
        for code, number in enumerate(table[1:], 1):
            is_code = b.icmp_unsigned("==", codes, constant(I8X64, code))
            found = b.select(is_code, constant(I8X64, number), found)
        return found

    def start_small(self, sums: Value) -> Value | None:
        return sums

    def add_small(self, b: Builder, running: Value | None, w: Value, x: Value) -> Value:
        signed = b.bitcast(x, I16X32)
        eight = constant(I16X32, 8)
        even, odd = b.ashr(b.shl(signed, eight), eight), b.ashr(signed, eight)
        return self.add(b, running, self.weights(b, w), (even, odd))

    def end_small(self, _b: Builder, _sums: Value, running: Value) -> Value:
        return running

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return b.add(sums, self.pairs(b, w, x))

    def pairs(self, b: Builder, w: Value, x: Value) -> Value:
        """Return the sums of neighbouring 16-bit products as int32."""
        products = b.mul(b.sext(w, _I32X32), b.sext(x, _I32X32))
        return b.add(every_second(b, products, 0), every_second(b, products, 1))


class _Madd(_Portable):
    """AVX2: vpmaddwd, and vpmaddubsw for 4-bit weights.

    The latter takes bytes but saturates at 16 bits, which two products of 8-bit codes overflow
    (2 * 255 * 127). Sixteen products with 4-bit weights fit (16 * 15 * 127 = 30,480), so eight of
    its results are summed before they are widened.
    """

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        return _by_halves(b, "llvm.x86.avx2.pshuf.b", _repeated(table, I8X64), codes)

    def start_small(self, _sums: Value) -> Value | None:
        return None

    def add_small(self, b: Builder, running: Value | None, w: Value, x: Value) -> Value:
        products = _by_halves(b, "llvm.x86.avx2.pmadd.ub.sw", w, x)
        return products if running is None else b.add(running, products)

    def end_small(self, b: Builder, sums: Value, running: Value) -> Value:
        return self.end_scaled(b, sums, running, constant(I16X32, 1))

    def end_scaled(self, b: Builder, sums: Value, running: Value, scale: Value) -> Value:
        """Return sums + what was added since `start_small(sums)`, times a scale of 16 bits."""
        return b.add(sums, self.pairs(b, running, scale))

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return in_order(b, super().add_pairs(b, sums, w, x))

    def pairs(self, b: Builder, w: Value, x: Value) -> Value:
        return _by_halves(b, "llvm.x86.avx2.pmadd.wd", w, x)


class _Usdot(_Bytes):
    """Arm's i8mm: one instruction per four outputs."""

    def add_pairs(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return DOTS["portable"].add_pairs(b, sums, w, x)

    def looked_up(self, b: Builder, table: Sequence[int], codes: Value) -> Value:
        return _by_quarters(b, "llvm.aarch64.neon.tbl1.v16i8", _repeated(table, I8X64), codes)

    def dot(self, b: Builder, sums: Value, w: Value, x: Value) -> Value:
        return _by_quarters(b, "llvm.aarch64.neon.usdot.v4i32.v16i8", sums, w, x)


MADD = _Madd()

DOTS: dict[str, Dots] = {
    "portable": _Portable(),
    "usdot": _Usdot(),
    "madd": MADD,
    "whole scales": MADD,
    "vnni256": _Vnni256(),
    "vnni512": _Vnni512(),
}
"""By the names that ISA levels use, and "whole scales" (`whole_scales`)."""


def _bfdot(b: Builder, sums: Value, w: Value, x: Value) -> Value:
    """Arm's bf16: one instruction per four outputs."""
    return _by_quarters(b, "llvm.aarch64.neon.bfdot.v4f32.v8bf16", sums, w, x)


def _vdpbf16ps(b: Builder, sums: Value, w: Value, x: Value) -> Value:
    """AVX-512 BF16: one instruction."""
    return call(b, "llvm.x86.avx512bf16.dpbf16ps.512", sums, w, x)


BF16_DOTS: dict[str, Callable[[Builder, Value, Value, Value], Value]] = {
    "bfdot": _bfdot,
    "vdpbf16ps": _vdpbf16ps,
}
"""Float32 sums plus products of pairs of bfloat16, by the names that ISA levels use."""


def in_order(b: Builder, sums: Value) -> Value:
    """Return sums as they are, by way of assembly without instructions, which keeps its place.

    LLVM would add products up as a tree, one row of a tile after another, and have no registers for
    the weights that rows share: 32 channels of 4 rows by 16 outputs of bytes then take 101 cycles,
    so 72 (one core of a Zen 3). Of 16 bits registers then make 117 Gop/s, so 146 (one core of an
    EPYC with AVX2, family 25, model 17).
    """
    low, high = halves(b, sums)
    kind = ir.FunctionType(low.type, [low.type])
    return joined(b, *(b.asm(kind, "", "=x,0", [half], True) for half in (low, high)))


def spread(b: Builder, address: Value) -> Value:
    """Return the four bytes at an address, sixteen times."""
    return b.bitcast(splat(b, load(b, I32, address)), I8X64)


def _repeated(table: Sequence[int], kind: ir.VectorType) -> Value:
    """Return 16 bytes as often as a vector has room for."""
    return ir.Constant(kind, [*table] * (kind.count // len(table)))


def _by_halves(b: Builder, name: str, *vectors: Value) -> Value:
    """Apply an intrinsic to both halves of vectors."""
    low, high = zip(*(halves(b, vector) for vector in vectors), strict=True)
    return joined(b, call(b, name, *low), call(b, name, *high))


def _by_quarters(b: Builder, name: str, *vectors: Value) -> Value:
    """Apply an intrinsic of 128 bits to the quarters of 512."""
    low, high = zip(*(halves(b, vector) for vector in vectors), strict=True)
    return joined(b, _by_halves(b, name, *low), _by_halves(b, name, *high))
