"""Errors where the CUDA driver or its bindings are missing."""

import subprocess
import sys

WITHOUT_BINDINGS = """
import sys
sys.modules["cuda"] = sys.modules["cuda.bindings"] = None
import spaninfer_kernel_launch as kernels
try:
    kernels.get_gpu()
except kernels.GpuMissing as error:
    print(error)
"""

WITHOUT_DRIVER = """
import sys, types
def refuse(flags):
    raise RuntimeError("libcuda.so.1 not found")
bindings = types.ModuleType("cuda.bindings")
bindings.driver = types.SimpleNamespace(cuInit=refuse)
sys.modules["cuda"], sys.modules["cuda.bindings"] = types.ModuleType("cuda"), bindings
import spaninfer_kernel_launch as kernels
try:
    kernels.get_gpu()
except kernels.GpuMissing as error:
    print(error)
"""


def test_without_the_package_that_binds_the_driver_the_extra_is_named():
    assert said_by(WITHOUT_BINDINGS) == (
        "cannot use a GPU: cuda-bindings is not installed; "
        "pip install './packages/kernel-launch[cu13]' in the root of the checkout "
        "([cu12] for drivers of CUDA 12)"
    )


def test_without_a_driver_that_is_said():
    assert said_by(WITHOUT_DRIVER) == "cannot use a GPU: no NVIDIA driver is installed"


def said_by(program):
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()
