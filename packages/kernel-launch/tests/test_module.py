"""Dynamic shared memory above the default limit, static shared memory included.

The driver is a table of one kernel's attributes, with a GPU's rules: no GPU is needed to see what
is asked of it.
"""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
from spaninfer_kernel_launch import Gpu, Pointer, Signature
from spaninfer_kernel_launch import module as of_module
from spaninfer_kernel_launch.module import Kernel

UNASKED = 48 << 10


class Out(NamedTuple):
    out: Pointer


class DriverOfOneKernel:
    """The attributes of a kernel on a GPU whose blocks have at most `most` bytes."""

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES="static",
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic",
    )
    CUkernel = CUdevice = staticmethod(int)

    def __init__(self, static, most):
        self.has, self.most, self.was_set = {"static": static, "dynamic": UNASKED}, most, False

    def cuKernelGetAttribute(self, name, *_):  # noqa: N802
        return 0, self.has[name]

    def cuKernelSetAttribute(self, name, number, *_):  # noqa: N802
        assert name == "dynamic"
        assert number + self.has["static"] <= self.most
        self.has[name], self.was_set = number, True
        return (0,)

    def launches(self, dynamic):
        """Would a launch with so much dynamic shared memory start?"""
        if not self.was_set:
            return dynamic + self.has["static"] <= UNASKED
        return dynamic <= self.has["dynamic"]


@pytest.mark.parametrize(
    ("static", "asked", "most"),
    [
        (0, [0, UNASKED], 227 << 10),
        (0, [UNASKED + 1, 100], 227 << 10),
        (1024, [UNASKED - 1024], 227 << 10),
        (1024, [UNASKED - 1023], 227 << 10),  # neither alone is more than a kernel has unasked
        (1024, [UNASKED, 150 << 10, UNASKED - 1000, 0], 227 << 10),
        (1024, [226 << 10, UNASKED], 227 << 10),
        (20 << 10, [30 << 10, 44 << 10, 29 << 10], 64 << 10),  # Turing: 48 KiB more are not there
    ],
)
def test_every_launch_that_was_allowed_can_start(monkeypatch, static, asked, most):
    driver = DriverOfOneKernel(static, most)
    monkeypatch.setattr(of_module, "driver", lambda: driver)
    gpu = Gpu(0, "a GPU", "sm_75", 1, most, 0, 0)
    kernel = Kernel(Signature("fill", Out), gpu, 1)

    for shared_bytes in asked:
        kernel.allow_shared(shared_bytes)

    assert all(map(driver.launches, asked))


def test_a_kernel_that_needs_nothing_more_is_left_alone(monkeypatch):
    driver = DriverOfOneKernel(1024, 64 << 10)
    monkeypatch.setattr(of_module, "driver", lambda: driver)
    kernel = Kernel(Signature("fill", Out), Gpu(0, "a GPU", "sm_75", 1, 64 << 10, 0, 0), 1)

    kernel.allow_shared(UNASKED - 1024)

    assert not driver.was_set
