"""Software prefetch."""

import numpy as np
from numba import njit
from spaninfer_kernels_cpu.codegen.prefetch import ask_to_read, ask_to_write, part_of


@njit
def _ask(first, last, stride):
    for address in range(first, last, stride):
        ask_to_read(address)
        ask_to_write(address)


def test_no_memory_needs_to_be_there_and_none_changes():
    numbers = np.arange(1000, dtype=np.int64)

    _ask(numbers.ctypes.data - (1 << 20), numbers.ctypes.data + (1 << 20), 64)
    _ask(0, 1 << 40, 1 << 34)
    _ask(-(1 << 40), 0, 1 << 34)

    np.testing.assert_array_equal(numbers, np.arange(1000))


@njit
def _parts(lines, count):
    return [part_of(lines, number, count) for number in range(count)]


def test_parts_of_lines_are_all_of_them_once():
    for address, num_lines, count in ((640, 9, 4), (640, 8, 4), (64, 3, 4), (0, 0, 4), (64, 7, 1)):
        parts = _parts((address, num_lines), count)

        found = [first + 64 * line for first, lines in parts for line in range(lines)]
        assert found == [address + 64 * line for line in range(num_lines)]
