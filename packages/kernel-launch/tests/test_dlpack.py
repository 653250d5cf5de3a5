"""DLPack capsules and the lifetime of their memory."""

import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from spaninfer_kernel_launch import Device, dlpack, view_of


class Owner:
    """What holds the memory."""


class Exporter:
    """An array on a GPU, as far as its capsule says."""

    def __init__(self, owner, dtype=np.float32):
        self.owner, self.dtype = owner, np.dtype(dtype)

    def __dlpack_device__(self):
        return dlpack.ON_GPU, 3

    def __dlpack__(self, stream=None):
        return dlpack.lend(0xABC000, (2, 3, 4), self.dtype, 3, self.owner)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16, np.uint8, np.bool_])
def test_what_is_lent_is_read_as_it_was_lent(dtype):
    seen = view_of(Exporter(Owner(), dtype))

    assert (seen.pointer, seen.shape, seen.strides) == (0xABC000, (2, 3, 4), (12, 4, 1))
    assert (seen.dtype, seen.device) == (np.dtype(dtype), Device("cuda", 3))


@pytest.mark.usefixtures("own_garbage")
def test_the_owner_lives_until_an_unread_capsule_is_collected():
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = Exporter(owner).__dlpack__()

    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()

    assert alive() is None


@pytest.mark.usefixtures("own_garbage")
def test_the_owner_lives_until_the_reader_lets_go(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    failures = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)  # while a capsule is collected
    owner, host = Owner(), np.zeros(3)
    alive = weakref.ref(owner)
    capsule = dlpack.lend(host.ctypes.data, (3,), host.dtype, 0, owner)
    dlpack.tensor_of(capsule).device_type = 1  # host memory, which torch reads without a GPU
    tensor = torch.from_dlpack(capsule)

    del owner, capsule
    gc.collect()
    assert alive() is not None
    del tensor
    gc.collect()

    assert alive() is None
    assert failures == []
