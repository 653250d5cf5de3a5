"""The largest numbers of a row, for Numba functions to call.

A heap of the k largest so far, its least on top: of a long row, almost every number is refused by
one comparison. Of equal numbers the one with the smaller id is the larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.device_function import device_function

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@device_function
def select_largest(x: Floats, ids: Ints, count: int, values: Floats, found: Ints, most: int) -> int:
    """Write the largest of x[:count] and their ids, largest first; return how many there are.

    `most` of them, or `count`, as far as they are not NaN.
    """
    size = 0
    for i in range(count):
        if size < most:
            if x[i] == x[i]:
                _rise(values, found, size, x[i], ids[i])
                size += 1
        elif size > 0 and _is_less(values[0], found[0], x[i], ids[i]):
            _sink(values, found, size, x[i], ids[i])
    for last in range(size - 1, 0, -1):
        value, number = values[last], found[last]
        values[last], found[last] = values[0], found[0]
        _sink(values, found, last, value, number)
    return size


@device_function
def _is_less(x: Any, x_id: Any, y: Any, y_id: Any) -> Any:
    return x < y or (x == y and x_id > y_id)


@device_function
def _rise(values: Floats, ids: Ints, place: int, value: np.float32, number: np.int32) -> None:
    """Put a number into the heap, from its end upwards."""
    while place > 0:
        parent = (place - 1) // 2
        if not _is_less(value, number, values[parent], ids[parent]):
            break
        values[place], ids[place] = values[parent], ids[parent]
        place = parent
    values[place], ids[place] = value, number


@device_function
def _sink(values: Floats, ids: Ints, size: int, value: np.float32, number: np.int32) -> None:
    """Put a number in the place of the least of a heap of `size`, from the top downwards."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_less(
            values[child + 1], ids[child + 1], values[child], ids[child]
        ):
            child += 1
        if not _is_less(values[child], ids[child], value, number):
            break
        values[place], ids[place] = values[child], ids[child]
        place = child
    values[place], ids[place] = value, number
