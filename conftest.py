"""What the tests of all packages share: who runs where, and where real data is."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).resolve().parent.parent / "shared" / "data"

# Tests read the variable only, and skip where the file they want is not in that folder.
os.environ.setdefault("SPANINFER_TEST_DATA", str(BESIDE_THE_CHECKOUT))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that are marked `gpu` step aside where no CUDA device is."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_cuda_device():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


def has_cuda_device() -> bool:
    """Ask the driver: none of the packages under test, and no framework, is needed for that."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )
