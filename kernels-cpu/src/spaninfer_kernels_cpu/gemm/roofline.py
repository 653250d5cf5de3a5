"""The roofline of this machine, measured: bytes read from memory, and operations of a tile.

A benchmark sets these beside its figures, since neither a clock nor a neighbour on the same host
holds still. They take some tenths of a second each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.codegen import atomics
from spaninfer_kernels_cpu.codegen.amx import TILE_BYTES, TILE_ROWS
from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm import amx_tile
from spaninfer_kernels_cpu.gemm.code_dots import add_dots, start_dots
from spaninfer_kernels_cpu.gemm.code_unit import WHOLE
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel
from spaninfer_kernels_cpu.gemm.micro_kernel_choice import micro_kernels
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_products,
    row_addresses,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import LANES, NUMBERS_PER_STEP, Format, Kind
from spaninfer_kernels_cpu.runtime.call import Call, Script
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool

_MEMORY_BYTES: Final = 512 << 20  # many times the caches
_CHUNK_BYTES: Final = 1 << 18
_STEPS: Final = 2_000_000  # of a tile: some 10 ms
_SPACE: Final = 1 << 14  # bytes; a tile reads the same few over and over


def read_gbps(cpus: int | None = None) -> float:
    """Return how many gigabytes a second that many CPUs (all usable ones) read from memory."""
    memory = np.ones(_MEMORY_BYTES // 8, np.int64)
    total = np.zeros(1, np.int64)
    return memory.nbytes / _seconds(read_call(memory, total), cpus) / 1e9


def peak_gops(
    kind: Kind, *, group: int | None = 32, rounded: bool = False, cpus: int | None = None
) -> float:
    """Return 10^9 operations a second of the ISA level's products, weights held in registers.

    A tile as kernels use it, its few activations in the nearest cache, of weights of a kind; a
    multiplication and an addition are two. `group`: channels of codes that share a scale, None for
    all; numbers have none. With `rounded`, activations are bfloat16. Products by tiles (AMX) find
    the activations in registers, too.
    """
    format = Format(kind, None if kind in NUMBERS_PER_STEP else group)
    _, many = micro_kernels(format, rounded=rounded, level=active_level())
    many = many.unpacking if many.expands_to_bytes else many
    workers = cpus or usable_cpus()
    space, out = np.zeros(_SPACE, np.uint8), np.zeros((workers, _SPACE), np.uint8)
    arguments = _RepeatArguments(space.ctypes.data, out.ctypes.data)
    seconds = _seconds(Call(_multiplier(many), arguments, tasks=workers), workers)
    if many.uses_amx:
        products = _STEPS * 4 * TILE_ROWS * LANES * TILE_BYTES // many.channel_bytes
    else:
        channels = many.row_bytes // many.channel_bytes
        products = _STEPS * many.rows * many.blocks * LANES * channels
    return 2 * workers * products / seconds / 1e9


def _seconds(call: Call, cpus: int | None) -> float:
    """Return the least of three times that a call takes on that many CPUs.

    By CPU time on one, which the caller's thread computes on: on a busy machine it is seldom left
    alone for 10 ms.
    """
    script, taken = Script([call]), []
    clock = time.process_time if cpus == 1 else time.perf_counter
    with ThreadPool(cpus) as thread_pool:
        for _ in range(3):
            start = clock()
            thread_pool.run(script, [1])
            taken.append(clock() - start)
    return min(taken)


@dataclass(frozen=True, slots=True)
class _ReadArguments(Arguments):
    memory: int
    total: int


def read_call(memory: NDArray[np.int64], total: NDArray[np.int64]) -> Call:
    """Return the call that reads whole chunks of memory, and writes one of their sums to total[1].

    The caller keeps both alive.
    """
    arguments = _ReadArguments(memory.ctypes.data, total.ctypes.data)
    return Call(_read, arguments, tasks=memory.nbytes // _CHUNK_BYTES)


def _read(a: _ReadArguments, _tokens: int, task: int) -> None:
    count = _CHUNK_BYTES // 8
    part = numbers_at(a.memory + task * _CHUNK_BYTES, count, np.int64)
    found = 0
    for i in range(count):
        found += part[i]
    atomics.store(a.total, found)


@dataclass(frozen=True, slots=True)
class _RepeatArguments(Arguments):
    space: int
    out: int


@variants
def _multiplier(micro: MicroKernel) -> Kernel:
    def multiply(a: _RepeatArguments, _tokens: int, task: int) -> None:
        """Multiply _STEPS steps, by the same weights as the other tasks."""
        repeat(micro, a.space, a.out + task * _SPACE)

    return multiply


def _choose_repeat(micro: MicroKernel) -> Any:
    if micro.uses_amx:
        return _repeat_amx
    return _repeat_quantised if micro.is_quantised else _repeat_numbers


@specialized(_choose_repeat)
def repeat(micro: MicroKernel, space: int, out: int) -> None:
    """Run _STEPS steps of a tile with the same weights and four activations; sums go to `out`.

    With the same activations too, LLVM would add the one product _STEPS times over.
    """
    raise NotImplementedError("exists in Numba functions only")


def _repeat_amx(micro: MicroKernel, space: int, out: int) -> None:
    """Multiply tiles that stay in registers."""
    amx_tile.repeat(micro, _STEPS, space, out)


def _repeat_quantised(micro: MicroKernel, space: int, out: int) -> Any:
    rows = row_addresses(micro, space, 64, micro.rows)
    dots = start_dots(micro, rows, 1024)
    for step in range(_STEPS):
        dots = add_dots(micro, WHOLE, dots, space, rows, (step & 3) * micro.row_bytes)
    store_tile(micro, dots, out)


def _repeat_numbers(micro: MicroKernel, space: int, out: int) -> Any:
    rows = row_addresses(micro, space, 64, micro.rows)
    sums = zero_tile(micro)
    for step in range(_STEPS):
        sums = add_products(micro, sums, space, rows, (step & 3) * micro.row_bytes)
    store_tile(micro, sums, out)
