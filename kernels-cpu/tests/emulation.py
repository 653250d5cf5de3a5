"""A pytest plugin for CPUs that lack an instruction: LLVM's definition of it in plain operations.

    SPANINFER_CPU_TIER=avx512_bf16 python -m pytest -p emulation test_products.py

So the layout of weights and activations, and the tiles, of every x86 tier are tested on any x86
CPU. Needs a cache of compiled kernels of its own (NUMBA_CACHE_DIR).
"""

from llvmlite import ir
from spaninfer_kernels_cpu import tiers, vectors
from spaninfer_kernels_cpu.vectors import F32X16, I32, I32X16

real = vectors.call


def call(b, name, *arguments):
    if "vpdpbusd" in name:
        return dot_of_bytes(b, *arguments)
    if "dpbf16ps" in name:
        return dot_of_bf16(b, *arguments)
    return real(b, name, *arguments)


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
    left, right = (b.bitcast(pairs, I32X16) for pairs in (left, right))
    for half in (vectors.even_bf16, vectors.odd_bf16):
        sums = b.fadd(sums, b.fmul(half(b, left), half(b, right)))
    assert sums.type == F32X16
    return sums


def pytest_configure():
    from spaninfer_kernels_cpu import dots

    dots.call = call
    tiers.features = lambda: frozenset().union(*(tier.needs for tier in tiers.TIERS))


vectors.call = call
