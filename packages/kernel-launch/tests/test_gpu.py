"""Architectures that a GPU runs, and devices of arrays."""

import numpy as np
import pytest
from spaninfer_kernel_launch import (
    ARCHITECTURES,
    Device,
    DeviceError,
    GpuMissing,
    GpuTooOld,
    View,
    architecture_of,
    get_gpu,
    view_of,
)
from spaninfer_kernel_launch.gpu import gpu_of


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        *(((7, 5), "sm_75"), ((8, 0), "sm_80"), ((8, 6), "sm_80"), ((8, 9), "sm_80")),
        *(((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 0), "sm_120"), ((12, 1), "sm_120")),
    ],
)
def test_a_gpu_runs_the_kernels_of_its_class(capability, arch):
    assert architecture_of(capability) == arch
    assert arch in ARCHITECTURES


@pytest.mark.parametrize("capability", [(6, 1), (7, 0), (10, 3), (13, 0)])
def test_a_gpu_without_kernels_is_told_which_there_are(capability):
    major, minor = capability

    with pytest.raises(GpuTooOld, match=rf"compute capability {major}.{minor}; there are sm_75"):
        architecture_of(capability)


def on(kind, index=0):
    return View(0, (3,), (1,), np.dtype("f4"), Device(kind, index), None)


def test_arrays_apart_are_named():
    with pytest.raises(DeviceError, match="y lies on cuda:1, but x lies on cuda:0"):
        gpu_of(x=on("cuda"), y=on("cuda", 1))
    with pytest.raises(DeviceError, match="y lies in cpu memory"):
        gpu_of(x=on("cuda"), y=view_of(np.zeros(3)))


@pytest.mark.gpu
def test_the_gpu_describes_itself():
    gpu = get_gpu(0)

    assert gpu.arch in ARCHITECTURES
    assert gpu.sm_count > 0
    assert gpu.shared_bytes >= 48 * 1024
    assert get_gpu(0) is gpu


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_missing():
    with pytest.raises(GpuMissing, match="there is no GPU 99"):
        get_gpu(99)
