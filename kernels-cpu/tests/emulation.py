"""A pytest plugin for CPUs that lack an instruction: LLVM's definition of it in plain operations.

    SPANINFER_CPU_TIER=avx512_bf16 python -m pytest -p emulation test_products.py

So the layout of weights and activations, and the tiles, of every x86 tier are tested on any x86
CPU. Needs a cache of compiled kernels of its own (NUMBA_CACHE_DIR). The registers of AMX are
memory that all threads share, so kernels run on one.
"""

from inspect import Parameter, signature

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from spaninfer_kernels_cpu import amx, products, tiers, vectors
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.pointer import numbers_at
from spaninfer_kernels_cpu.vectors import I32, I64

real = vectors.call


def call(b, name, *arguments):
    if "vpdpbusd" in name or "usdot" in name:
        return b.call(defined(b.module, name, dot_of_bytes), arguments)
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
    products = b.mul(b.zext(unsigned, wide), b.sext(signed, wide))
    for place in range(4):
        lanes = [4 * i + place for i in range(sums.type.count)]
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        sums = b.add(sums, b.shuffle_vector(products, products, mask))
    return sums


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


# ---- tiles ---------------------------------------------------------------------------------------
# Functions of whole numbers, a tile being its number, which kernels call by address: taken in by
# every kernel, for each of the eight tiles anew, they took a minute to compile.

REGISTERS = np.zeros((8, 16, 64), np.uint8)
SIZES = np.zeros((8, 2), np.int64)  # rows, bytes of a row
AT, SIZES_AT = REGISTERS.ctypes.data, SIZES.ctypes.data
COMPILED = []  # machine code goes with the object that holds it


def stands_for_an_instruction(function):
    """An intrinsic of Numba that calls the function."""
    given = signature(function)
    words = [types.int64] * len(given.parameters)
    compiled = cfunc(types.void(*words))(function)
    COMPILED.append(compiled)

    def typed(_context, *arguments):
        def emit(context, b, _signature, values):
            numbers = [
                I64(kind.value.number) if isinstance(getattr(kind, "value", 0), amx.Tile) else value
                for kind, value in zip(arguments, values, strict=True)
            ]
            kind = ir.FunctionType(ir.VoidType(), [I64] * len(words))
            b.call(b.inttoptr(I64(compiled.address), kind.as_pointer()), numbers)
            return context.get_dummy_value()

        return types.void(*arguments), emit

    context = Parameter("_context", Parameter.POSITIONAL_OR_KEYWORD)
    typed.__signature__ = given.replace(parameters=[context, *given.parameters.values()])
    return vectors.intrinsic(typed)


@in_kernel
def register(tile, dtype, count):
    return numbers_at(AT + tile * 1024, count, dtype)


@in_kernel
def size(tile):
    sizes = numbers_at(SIZES_AT + tile * 16, 2, np.int64)
    return sizes[0], sizes[1]


def configure(_address, upper, lower, width):
    sizes = numbers_at(SIZES_AT, 16, np.int64)
    sizes[0:4], sizes[4:8] = upper, lower
    sizes[1:8:2] = 64
    sizes[8], sizes[10], sizes[9:12:2] = upper, lower, width
    sizes[12:16:2], sizes[13:16:2] = width // 4, 64
    for tile in range(4):
        sizes[2 * tile] = upper if tile < 2 else lower
    numbers_at(AT, 8 * 1024, np.uint8)[:] = 0


def zero(tile):
    register(tile, np.uint8, 1024)[:] = 0


def load(tile, address, stride):
    rows, width = size(tile)
    register(tile, np.uint8, 1024)[:] = 0
    for row in range(rows):
        source = numbers_at(address + row * stride, width, np.uint8)
        register(tile, np.uint8, 1024)[row * 64 : row * 64 + width] = source


def store(tile, address, stride):
    rows, width = size(tile)
    for row in range(rows):
        numbers_at(address + row * stride, width, np.uint8)[:] = register(tile, np.uint8, 1024)[
            row * 64 : row * 64 + width
        ]


def add_bytes(sums, left, right):
    rows, _ = size(sums)
    steps, _ = size(right)
    out = register(sums, np.int32, 256)
    a, b = register(left, np.int8, 1024), register(right, np.uint8, 1024)
    for m in range(rows):
        for k in range(steps):
            for n in range(64):
                product = np.int32(a[m * 64 + k * 4 + n % 4]) * np.int32(b[k * 64 + n])
                out[m * 16 + n // 4] += product


def add_bf16(sums, left, right):
    rows, _ = size(sums)
    steps, _ = size(right)
    out = register(sums, np.float32, 256)
    a, b = register(left, np.uint16, 512), register(right, np.uint16, 512)
    for m in range(rows):
        for k in range(steps):
            for n in range(32):
                x, w = np.uint32(a[m * 32 + k * 2 + n % 2]), np.uint32(b[k * 32 + n])
                x, w = np.uint32(x << np.uint32(16)), np.uint32(w << np.uint32(16))
                out[m * 16 + n // 2] += x.view(np.float32) * w.view(np.float32)


def release():
    pass


def alone(kernel, arguments, _num_workers):
    kernel(np.zeros(1, np.int64), *arguments)


def pytest_configure():
    from spaninfer_kernels_cpu import dots

    for function in (configure, zero, load, store, add_bytes, add_bf16, release):
        setattr(amx, function.__name__, stands_for_an_instruction(function))
    amx.permitted = lambda: True
    products.share = alone
    dots.call = call
    tiers.features = lambda: frozenset().union(*(tier.needs for tier in tiers.TIERS))


vectors.call = call
