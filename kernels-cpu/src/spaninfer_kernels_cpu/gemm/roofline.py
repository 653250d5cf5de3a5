"""The roofline of this machine, measured: bytes read from memory, and operations of a tile.

A benchmark sets these beside its figures, since neither a clock nor a neighbour on the same host
holds still. They take some tenths of a second each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.amx import TILE_BYTES, TILE_ROWS
from spaninfer_kernels_cpu.codegen.array_view import numbers_at
from spaninfer_kernels_cpu.codegen.compiled import entry, make_ready
from spaninfer_kernels_cpu.codegen.device_function import INLINE
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.gemm import amx_tile
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel, micro_kernels
from spaninfer_kernels_cpu.gemm.register_tile import (
    add_dots,
    add_products,
    row_addresses,
    start_dots,
    store_tile,
    zero_tile,
)
from spaninfer_kernels_cpu.quantisation.layout import LANES, Kind
from spaninfer_kernels_cpu.runtime.cpu_count import usable_cpus
from spaninfer_kernels_cpu.runtime.workers import COUNTER, Counter, next_task, share

_MEMORY_BYTES: Final = 512 << 20  # many times the caches
_CHUNK_BYTES: Final = 1 << 18
_STEPS: Final = 2_000_000  # of a tile: some 10 ms
_SPACE: Final = 1 << 14  # bytes; a tile reads the same few over and over


def read_gbps(cpus: int | None = None) -> float:
    """Return how many gigabytes a second so many CPUs (all usable ones) read from memory."""
    memory = np.ones(_MEMORY_BYTES // 8, np.int64)
    totals = np.zeros(1, np.int64)
    workers = cpus or usable_cpus()
    seconds = min(_seconds(_reader(), (memory, totals), workers) for _ in range(3))
    return memory.nbytes / seconds / 1e9


def peak_gops(kind: Kind, *, rounded: bool = False, cpus: int | None = None) -> float:
    """Return 10^9 operations a second of the ISA level's products, weights held in registers.

    A tile as kernels use it, its few activations in the nearest cache, of weights of a kind; a
    multiplication and an addition are two. With `rounded`, activations are bfloat16. Products by
    tiles (AMX) find the activations in registers, too.
    """
    _, many = micro_kernels(kind, rounded=rounded, level=active_level())
    workers = cpus or usable_cpus()
    space = np.zeros(_SPACE, np.uint8)
    seconds = min(_seconds(_multiplier(many), (workers, space), workers) for _ in range(3))
    if many.by_tiles:
        products = _STEPS * 4 * TILE_ROWS * LANES * TILE_BYTES // many.channel_bytes
    else:
        channels = many.row_bytes // many.channel_bytes
        products = _STEPS * many.rows * many.blocks * LANES * channels
    return 2 * workers * products / seconds / 1e9


def _seconds(kernel: Callable[..., None], arguments: tuple[Any, ...], workers: int) -> float:
    start = time.perf_counter()
    share(kernel, arguments, workers)
    return time.perf_counter() - start


@cache
def _reader() -> Callable[..., None]:
    row = types.Array(types.int64, 1, "C")
    make_ready(_read, (COUNTER, row, row))
    return _read


@entry
def _read(counter: Counter, memory: NDArray[np.int64], totals: NDArray[np.int64]) -> None:
    """Read all of memory; a task is a chunk."""
    count = _CHUNK_BYTES // 8
    task = next_task(counter)
    while task < len(memory) // count:
        part = numbers_at(memory.ctypes.data + task * _CHUNK_BYTES, count, np.int64)
        found = 0
        for i in range(count):
            found += part[i]
        totals[0] = found
        task = next_task(counter)


@cache
def _multiplier(micro: MicroKernel) -> Callable[..., None]:
    @entry
    def work(counter: Counter, tasks: int, space: NDArray[np.uint8]) -> None:
        """Multiply _STEPS steps per task, by the same weights."""
        out = np.empty(_SPACE, np.uint8)
        while next_task(counter) < tasks:
            repeat(micro, space.ctypes.data, out.ctypes.data)

    make_ready(work, (COUNTER, types.int64, types.Array(types.uint8, 1, "C")))
    return work


def repeat(micro: MicroKernel, space: int, out: int) -> None:
    """Do _STEPS steps of a tile with the same weights and four activations; sums go to `out`.

    With the same activations too, LLVM would add the one product _STEPS times over.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(repeat, jit_options=INLINE)
def _repeat(micro: MicroKernel, space: int, out: int) -> Any:  # noqa: ARG001
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = micro
    if kind.value.by_tiles:
        return _repeat_tiles
    return _repeat_quantised if kind.value.is_quantised else _repeat_numbers


def _repeat_tiles(micro: MicroKernel, space: int, out: int) -> None:
    """Multiply tiles that stay in registers."""
    amx_tile.repeat(micro, _STEPS, space, out)


def _repeat_quantised(micro: MicroKernel, space: int, out: int) -> Any:
    rows = row_addresses(micro, space, 64, micro.rows)
    dots = start_dots(micro, rows, 1024)
    for step in range(_STEPS):
        dots = add_dots(micro, dots, space, rows, (step & 3) * micro.row_bytes)
    store_tile(micro, dots, out)


def _repeat_numbers(micro: MicroKernel, space: int, out: int) -> Any:
    rows = row_addresses(micro, space, 64, micro.rows)
    sums = zero_tile(micro)
    for step in range(_STEPS):
        sums = add_products(micro, sums, space, rows, (step & 3) * micro.row_bytes)
    store_tile(micro, sums, out)
