"""Parts of kernels: compiled once per types, only as part of what calls them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numba import njit
from numba.extending import overload
from spaninfer_kernels_cpu.elements import larger
from spaninfer_kernels_cpu.in_kernel import PART, also_in_kernel, in_kernel, in_kernel_with


def test_a_part_is_compiled_once_whatever_numbers_stand_in_calls_of_it():
    @in_kernel
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

    @overload(doubled, jit_options=PART)
    def _doubled(x):  # noqa: ARG001
        return lambda x: twice(x)

    @in_kernel
    def twice(x):
        return 2 * x

    @in_kernel
    def both(x):
        return doubled(x) + twice(x)

    @njit
    def kernel(x):
        return both(x)

    assert kernel(5) == 20
    (code,) = kernel.inspect_llvm().values()
    assert "twice" not in code.split("define", 1)[1].split("}", 1)[0]


def test_python_cannot_call_a_part():
    @in_kernel
    def plus(x, y):
        return x + y

    with pytest.raises(TypeError, match=r"plus is a part of kernels: Python cannot call it"):
        plus(1, 2)


def test_what_python_calls_too_means_the_same_in_kernels():
    @also_in_kernel
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
        ("in order", in_kernel(total)),
        ("by lanes", in_kernel_with(fastmath={"reassoc"})(total)),
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


SHOW = """
from spaninfer_kernels_cpu.kernel import compiler_of
from spaninfer_kernels_cpu.norm_call import _rms_norm
compiler = compiler_of(_rms_norm)
compiler.compile()
print(compiler._library.get_asm_str())
"""


def test_loops_use_all_of_a_vector_also_for_cpus_that_llvm_takes_for_slow_with_those(tmp_path):
    settings = {
        "NUMBA_CPU_NAME": "sapphirerapids",
        "NUMBA_CPU_FEATURES": "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx2,+fma,+f16c",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }

    run = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.count("%zmm") > run.stdout.count("%ymm")
