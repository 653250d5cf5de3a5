"""Inline functions: compiled once per argument types, only as part of their caller."""

import numpy as np
import pytest
from numba import njit
from numba.extending import overload
from spaninfer_kernels_cpu.codegen.device_function import (
    INLINE,
    device_function,
    device_function_with,
    host_device_function,
)
from spaninfer_kernels_cpu.codegen.elements import larger
from spaninfer_kernels_cpu.codegen.inline_function import always_inline


def test_a_part_is_compiled_once_whatever_numbers_stand_in_calls_of_it():
    @device_function
    def plus(x, y):
        return x + y

    @njit
    def kernel(x):
        return plus(x, 1) + plus(2, x) + plus(x, x)

    assert kernel(10) == 11 + 12 + 20
    assert len(plus.signatures) == 1


def test_parts_of_parts_and_overloads_end_up_in_the_kernel():
    def doubled(x):
        raise NotImplementedError

    @overload(doubled, jit_options=INLINE)
    def _doubled(x):  # noqa: ARG001
        return lambda x: twice(x)

    @device_function
    def twice(x):
        return 2 * x

    @device_function
    def both(x):
        return doubled(x) + twice(x)

    @njit
    def kernel(x):
        return both(x)

    assert kernel(5) == 20
    (code,) = kernel.inspect_llvm().values()
    assert "twice" not in code.split("define", 1)[1].split("}", 1)[0]


def test_python_cannot_call_a_part():
    @device_function
    def plus(x, y):
        return x + y

    with pytest.raises(TypeError, match=r"plus is a part of kernels: Python cannot call it"):
        plus(1, 2)


def test_what_python_calls_too_means_the_same_in_kernels():
    @host_device_function
    def halves(x):
        return (x + 1) // 2

    @njit
    def kernel(x):
        return halves(x)

    assert halves(7) == kernel(7) == 4


def test_sums_may_go_by_lanes_only_where_the_part_says_so():
    def total(x):
        sum_ = np.float32(0)
        for i in range(len(x)):
            sum_ += x[i]
        return sum_

    adds = {}
    for name, part in (
        ("in order", device_function(total)),
        ("by lanes", device_function_with(fastmath={"reassoc"})(total)),
    ):

        @njit
        def kernel(x, part=part):
            return part(x)

        kernel(np.ones(8, np.float32))
        (code,) = kernel.inspect_llvm().values()
        adds[name] = "x float> %" in code and "fadd reassoc <" in code

    assert adds == {"in order": False, "by lanes": True}


def test_the_larger_number_is_found_by_vector_code():
    @njit
    def most(x):
        largest = x[0]
        for i in range(len(x)):
            largest = larger(largest, x[i])
        return largest

    x = np.random.default_rng(0).standard_normal(1000, np.float32)

    assert most(x) == x.max()
    (code,) = most.inspect_llvm().values()
    assert "x float>" in code


def test_what_is_always_inlined_is_no_call_however_long_it_is():
    @device_function
    @always_inline
    def long(x):
        for _ in range(3):
            for _ in range(3):
                for _ in range(3):
                    x = x // 3 + x // 5 + x // 7 + x // 11 + x // 13 + x // 17 + x // 19 + x // 23
        return x

    @njit
    def kernel(x):
        return long(x) + long(x + 1) + long(x + 2) + long(x + 3)

    assert kernel(0) == 0
    (code,) = kernel.inspect_llvm().values()
    assert not [line for line in code.splitlines() if " call " in line and "4long" in line]
