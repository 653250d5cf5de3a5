"""A pytest plugin for CPUs that lack an instruction: LLVM's definition of it in plain operations.

    export NUMBA_CACHE_DIR=/tmp/emulated SPANINFER_CPU_TIER=avx512_bf16
    python -m pytest -p emulation gemm/test_gemm.py

So the layout of weights and activations, and the tiles, of every x86 tier are tested on any x86
CPU. The registers of AMX are memory that all threads share, so kernels run on one: the process
keeps to one CPU.

Compiled kernels are kept as always, and this file is one of their sources: nothing else loads them.
They need a folder of their own, since processes discard what was made from other sources.
"""

import ctypes
import os
from functools import cache
from hashlib import sha256
from inspect import Parameter, signature
from pathlib import Path

import ml_dtypes
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from spaninfer_kernels_cpu.codegen import amx, compiled, isa_level, vectors
from spaninfer_kernels_cpu.codegen.vectors import I32, I64
from spaninfer_kernels_cpu.gemm import dot_product
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

real = vectors.call


def call(b, name, *arguments):
    if "vpdpbusd" in name or "usdot" in name:
        return b.call(defined(b.module, name, dot_of_bytes), arguments)
    if "vpdpwssd" in name:
        return b.call(defined(b.module, name, dot_of_words), arguments)
    if "pshuf.b.512" in name:
        return b.call(defined(b.module, name, table_entries), arguments)
    if "dpbf16ps" in name or "bfdot" in name:
        return b.call(defined(b.module, name, dot_of_bf16), arguments)
    return real(b, name, *arguments)


def defined(module, name, definition):
    """A function of the module that stands for an intrinsic: its code once, not in every place."""
    kind, name = vectors.INTRINSICS[name], f"emulated.{name}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    b = ir.IRBuilder(function.append_basic_block())
    b.ret(definition(b, *function.args))
    return function


def dot_of_bytes(b, sums, unsigned, signed):
    """sums + four products of an unsigned and a signed byte per lane."""
    wide = ir.VectorType(I32, unsigned.type.count)
    return added(b, sums, b.mul(b.zext(unsigned, wide), b.sext(signed, wide)))


def dot_of_words(b, sums, left, right):
    """sums + two products of int16 per lane."""
    wide = ir.VectorType(I32, left.type.count)
    return added(b, sums, b.mul(b.sext(left, wide), b.sext(right, wide)))


def added(b, sums, products):
    """sums + the products of each lane, which are neighbours."""
    each = products.type.count // sums.type.count
    for place in range(each):
        lanes = [each * i + place for i in range(sums.type.count)]
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        sums = b.add(sums, b.shuffle_vector(products, products, mask))
    return sums


def table_entries(b, table, codes):
    """Entries of a table of 16 bytes, which a vector of bytes holds again and again."""
    found = vectors.constant(codes.type, 0)
    for code in range(16):
        entry = vectors.splat(b, b.extract_element(table, I32(code)), codes.type.count)
        is_code = b.icmp_unsigned("==", codes, vectors.constant(codes.type, code))
        found = b.select(is_code, entry, found)
    return found


def dot_of_bf16(b, sums, left, right):
    """sums + two products of bfloat16 per lane."""
    lanes = ir.VectorType(I32, sums.type.count)
    left, right = (b.bitcast(pairs, lanes) for pairs in (left, right))
    for widen in (
        lambda x: b.shl(x, vectors.constant(lanes, 16)),
        lambda x: b.and_(x, vectors.constant(lanes, 0xFFFF0000)),
    ):
        low, high = (b.bitcast(widen(x), sums.type) for x in (left, right))
        sums = b.fadd(sums, b.fmul(low, high))
    return sums


def to_bf16(b, floats):
    """Finite float32 lanes as bfloat16, ties to even."""
    kind = ir.VectorType(I32, floats.type.count)
    bits = b.bitcast(floats, kind)
    odd = b.and_(b.lshr(bits, vectors.constant(kind, 16)), vectors.constant(kind, 1))
    bits = b.add(bits, b.add(odd, vectors.constant(kind, 0x7FFF)))
    upper = b.trunc(b.lshr(bits, vectors.constant(kind, 16)), vectors.I16X16)
    return b.bitcast(upper, ir.VectorType(vectors.BF16, floats.type.count))


# ---- tiles ---------------------------------------------------------------------------------------
# Functions of Python, a tile being its number, which kernels call by a symbol: one that another
# process has compiled calls those of this one. Compiling them took seven seconds of every run.

TILES = np.zeros((8, 16, 64), np.uint8)
SIZES = np.zeros((8, 2), int)  # rows, bytes of a row
CALLED = []  # machine code goes with the object that holds it


def stands_for_an_instruction(function):
    """An intrinsic of Numba that calls the function."""
    given = signature(function)
    words = [I64] * len(given.parameters)
    called = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(function)
    CALLED.append(called)
    symbol = f"emulated.amx.{function.__name__}"
    binding.add_symbol(symbol, ctypes.cast(called, ctypes.c_void_p).value)

    def typed(_context, *arguments):
        def emit(context, b, _signature, values):
            numbers = [
                I64(kind.value.number) if isinstance(getattr(kind, "value", 0), amx.Tile) else value
                for kind, value in zip(arguments, values, strict=True)
            ]
            kind = ir.FunctionType(ir.VoidType(), words)
            known = b.module.globals
            b.call(known.get(symbol) or ir.Function(b.module, kind, symbol), numbers)
            return context.get_dummy_value()

        return types.void(*arguments), emit

    context = Parameter("_context", Parameter.POSITIONAL_OR_KEYWORD)
    typed.__signature__ = given.replace(parameters=[context, *given.parameters.values()])
    return vectors.intrinsic(typed)


def configure(_address, upper, lower, width):
    weights = (width // 4, 64)
    SIZES[:4] = [(rows, 64) for rows in (upper, upper, lower, lower)]
    SIZES[4:] = (upper, width), (lower, width), weights, weights
    TILES[:] = 0


def zero(tile):
    TILES[tile] = 0


def load(tile, address, stride):
    rows, width = SIZES[tile]
    TILES[tile] = 0
    TILES[tile, :rows, :width] = memory(address, rows, width, stride)


def load_passing(tile, address, stride):
    load(tile, address, stride)


def store(tile, address, stride):
    rows, width = SIZES[tile]
    memory(address, rows, width, stride)[:] = TILES[tile, :rows, :width]


def memory(address, rows, width, stride):
    """The rows of a tile, `stride` bytes apart, where they lie."""
    held = (ctypes.c_uint8 * ((rows - 1) * stride + width)).from_address(address)
    return np.ndarray((rows, width), np.uint8, held, strides=(stride, 1))


def add_bytes(sums, left, right):
    add(sums, np.int32, TILES[left].view(np.int8), TILES[right], SIZES[right, 0])


def add_bf16(sums, left, right):
    left, right, steps = TILES[left], TILES[right], SIZES[right, 0]
    add(sums, np.float32, left.view(ml_dtypes.bfloat16), right.view(ml_dtypes.bfloat16), steps)


def add(sums, dtype, left, right, steps):
    """The products of a tile's rows with columns, of which each row has a few numbers."""
    rows, side_by_side = SIZES[sums, 0], left.shape[1] // 16
    # Products of bfloat16 added in float64 are the same in any order, whatever the number of rows.
    x = left[:rows, : steps * side_by_side].astype(np.float64)
    w = right[:steps].reshape(steps, 16, side_by_side).swapaxes(1, 2).reshape(-1, 16)
    TILES[sums].view(dtype)[:rows] += (x @ w.astype(np.float64)).astype(dtype)


def release():
    pass


# ---- the plugin ----------------------------------------------------------------------------------


@cache
def digest_of_sources():
    """What differs whenever a source of the package does, or this file."""
    return sha256(of_package().encode() + Path(__file__).read_bytes()).hexdigest()[:16]


def pytest_configure():
    if hasattr(os, "sched_setaffinity"):
        usable = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {usable[os.getpid() % len(usable)]})
    for function in (configure, zero, load, load_passing, store, add_bytes, add_bf16, release):
        setattr(amx, function.__name__, stands_for_an_instruction(function))
    amx.permitted = lambda: True
    compiled.digest_of_sources = digest_of_sources
    start = ThreadPool.__init__
    ThreadPool.__init__ = lambda pool, *_: start(pool, 1)  # all threads would share the registers
    isa_level.features = lambda: frozenset().union(*(level.needs for level in isa_level.ISA_LEVELS))


of_package = compiled.digest_of_sources
vectors.call = dot_product.call = call
vectors.to_bf16 = to_bf16
