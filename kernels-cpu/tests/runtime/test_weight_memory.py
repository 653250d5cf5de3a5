"""Packed weights on shared pages."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from spaninfer_kernels_cpu import Format, pack
from spaninfer_kernels_cpu.codegen.memory import CACHE_LINE
from spaninfer_kernels_cpu.runtime.weight_memory import BLOCK_BYTES, HUGE_PAGE, WeightMemory


def test_arrays_lie_side_by_side_on_cache_lines_and_the_first_on_a_large_page():
    memory = WeightMemory()

    first, second = memory.take((3, 7)), memory.take((5,))

    assert (first.shape, second.shape) == ((3, 7), (5,))
    assert first.ctypes.data % HUGE_PAGE == 0
    assert second.ctypes.data == first.ctypes.data + CACHE_LINE
    first[...], second[...] = 1, 2
    assert (first == 1).all()
    assert (second == 2).all()


@pytest.mark.parametrize("size", [BLOCK_BYTES, BLOCK_BYTES + 1])
def test_what_does_not_fit_gets_a_block_of_its_own(size):
    memory = WeightMemory()
    first = memory.take((10,))

    large = memory.take((size,))
    large[-1] = 1

    assert large.ctypes.data % HUGE_PAGE == 0
    assert abs(large.ctypes.data - first.ctypes.data) >= HUGE_PAGE


@pytest.mark.usefixtures("own_garbage")
def test_a_block_lives_as_long_as_an_array_of_it():
    memory = WeightMemory()
    kept = memory.take((10,))
    kept[...] = 7
    dropped = memory.take((BLOCK_BYTES,))
    block = weakref.ref(_owner(dropped))
    memory.take((BLOCK_BYTES,))

    del dropped
    gc.collect()

    assert block() is None
    assert (kept == 7).all()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads Linux's accounts")
def test_it_is_the_process_s_own_for_shared_memory_seldom_gets_large_pages():
    memory = WeightMemory().take((10,))

    owned = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, permissions, *_ = line.split()
        start, stop = (int(end, 16) for end in ends.split("-"))
        if start <= memory.ctypes.data < stop:
            owned.append(permissions)

    assert owned == ["rw-p"]


def test_packed_weights_are_taken_from_it():
    weight = np.ones((64, 64), np.float32)

    first, second = (pack(weight, Format("bfloat16")).panels for _ in range(2))

    assert abs(second.ctypes.data - first.ctypes.data) < BLOCK_BYTES
    assert _owner(first) is _owner(second) or first.ctypes.data % HUGE_PAGE


def _owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
