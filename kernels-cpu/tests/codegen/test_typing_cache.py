"""The cache of operators' types during compilation: the same results as without it."""

import numpy as np
import pytest
from numba import njit, types
from numba.core.registry import cpu_target
from spaninfer_kernels_cpu.codegen.typing_cache import typing_cached


def mixed(i, x, numbers):
    y = i // 3 + i % 3 - (i << 1)
    z = np.float32(x * i + x / 7)
    return z + numbers[i] - y if bool(i) and z > y else -z * numbers[0]


def test_a_function_compiled_so_computes_what_it_did():
    numbers = np.arange(20, dtype=np.float32)
    plain = njit(mixed)
    signature = types.int64, types.float32, types.Array(types.float32, 1, "C")

    plain.compile(signature)
    for _ in range(2):  # the second time nothing is asked
        remembering = njit(mixed)
        with typing_cached():
            remembering.compile(signature)

    for i in range(-3, 19):
        assert plain(i, np.float32(2.5), numbers) == remembering(i, np.float32(2.5), numbers)


def test_an_error_leaves_numba_as_it_was():
    def senseless(x):
        return x + None

    with pytest.raises(Exception, match="No implementation"), typing_cached():
        njit(senseless).compile((types.int64,))

    assert "resolve_function_type" not in vars(cpu_target.typing_context)
