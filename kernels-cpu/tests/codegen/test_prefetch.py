"""Software prefetch."""

import numpy as np
from numba import njit
from spaninfer_kernels_cpu.codegen.prefetch import ask_to_read, ask_to_write


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
