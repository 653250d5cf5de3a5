"""Cache-line alignment of memory."""

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.codegen.array_view import floats_at
from spaninfer_kernels_cpu.codegen.memory import (
    CACHE_LINE,
    StackBytes,
    aligned,
    odd_lines,
    stack,
    whole_lines,
)

ROOM = StackBytes(4 * 100)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 7), np.float32), ((1,), np.uint8), ((0, 5), np.int64)]
)
def test_an_array_begins_with_a_line_and_has_its_shape_and_type(shape, dtype):
    array = aligned(shape, dtype)

    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.ctypes.data % CACHE_LINE == 0 or not array.size
    array[...] = 1


@pytest.mark.parametrize(("num_bytes", "lines"), [(0, 0), (1, 1), (64, 1), (65, 2)])
def test_whole_lines_hold_so_many_bytes(num_bytes, lines):
    assert whole_lines(num_bytes) == lines * CACHE_LINE


@pytest.mark.parametrize(("num_bytes", "lines"), [(0, 0), (1, 1), (64, 1), (65, 3), (192, 3)])
def test_odd_lines_hold_so_many_bytes(num_bytes, lines):
    assert odd_lines(num_bytes) == lines * CACHE_LINE


def test_a_room_on_the_stack_begins_with_a_line_and_keeps_what_a_loop_writes():
    @njit
    def kernel(quanta):
        room = stack(ROOM)
        numbers = floats_at(room, 100)
        for quantum in range(quanta):
            numbers[quantum % 100] = np.float32(quantum)
        total = np.float32(0)
        for number in numbers:
            total += number
        return total, room % CACHE_LINE

    assert kernel(1000) == (sum(range(900, 1000)), 0)
