"""The public names of the package, and the imports they need."""

import subprocess
import sys
from types import ModuleType

import spaninfer_kernel_launch

WITHOUT_CUDA = """
import sys
for name in ("cuda", "cuda.bindings", "cuda.core", "cuda.pathfinder", "torch"):
    sys.modules[name] = None
import spaninfer_kernel_launch as kernels
source = kernels.Source("spaninfer_kernel_launch", "csrc/math.cuh")
try:
    kernels.compile_variant(kernels.Variant.of("k", source, {}), "sm_80")
except kernels.CompilerMissing as error:
    print(error)
"""


def test_everything_visible_is_promised():
    visible = {
        name
        for name, value in vars(spaninfer_kernel_launch).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible == set(spaninfer_kernel_launch.__all__)


def test_without_cuda_packages_it_imports_and_compiling_names_the_extra():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_CUDA], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == (
        "cannot compile CUDA kernels: cuda-bindings is not installed; "
        "pip install './packages/kernel-launch[cu13]' in the root of the checkout "
        "([cu12] for drivers of CUDA 12)"
    )


def test_importing_it_imports_neither_cuda_nor_a_framework():
    program = "import spaninfer_kernel_launch, sys; print(*sys.modules)"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert not {"torch", "cupy", "cuda.bindings", "cuda.core"} & set(result.stdout.split())
