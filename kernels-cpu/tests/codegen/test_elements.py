"""Numbers at addresses, and their cheap replacements for numpy's min, max and bit casts."""

import numpy as np
import pytest
from numba import njit
from spaninfer_kernels_cpu.codegen.array_view import floats_at, numbers_at
from spaninfer_kernels_cpu.codegen.elements import bits_of, float_of, larger, smaller

FLOATS = np.array([-np.inf, -1.5, -1e-40, -0.0, 0.5, 3.0, np.inf], np.float32)
INTS = np.array([-(2**63), -1, 0, 1, 2**40, 2**63 - 1])


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "ints"])
def test_larger_and_smaller_are_max_and_min(numbers):
    @njit
    def ends(x, y):
        return larger(x, y), smaller(x, y)

    for x in numbers:
        for y in numbers:
            assert ends(x, y) == (max(x, y), min(x, y))


def test_bits_are_those_of_the_number_and_make_it_again():
    @njit
    def there_and_back(x):
        return bits_of(x), float_of(bits_of(x))

    for x in (*FLOATS, np.float32(np.nan)):
        bits, again = there_and_back(x)
        assert bits == x.view(np.int32)
        assert np.float32(again).tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64, np.float64])
def test_numbers_at_an_address_are_an_array(dtype):
    numbers = np.arange(7, dtype=dtype)

    @njit
    def total_and_mark(address, count):
        view = numbers_at(address, count, dtype)
        total = view.sum()
        view[count - 1] = 100
        return total, len(view), view.strides[0]

    total, count, stride = total_and_mark(numbers.ctypes.data, 6)

    assert (total, count, stride) == (15, 6, numbers.itemsize)
    assert numbers.tolist() == [0, 1, 2, 3, 4, 100, 6]


def test_floats_at_an_address_are_an_array():
    numbers = np.arange(5, dtype=np.float32)

    @njit
    def group_bias(address):
        return floats_at(address, 5)[1:4].copy()

    assert group_bias(numbers.ctypes.data).tolist() == [1, 2, 3]
