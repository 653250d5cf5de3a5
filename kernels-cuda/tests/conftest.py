"""Arrays of torch and cupy on the GPU, made of numpy's and turned back into them."""

import ml_dtypes
import numpy as np
import pytest


class Torch:
    """torch, which has no way to and from numpy for bfloat16 and fp8 but their bits."""

    def __init__(self):
        self.module = pytest.importorskip("torch", reason="torch is not installed")

    def put(self, array):
        if array.dtype == ml_dtypes.bfloat16:
            bits = self.module.from_numpy(array.view(np.int16))
            return bits.cuda().view(self.module.bfloat16)
        return self.module.from_numpy(array).cuda()

    def get(self, array):
        tensor = self.module.from_dlpack(array)
        if tensor.dtype == self.module.bfloat16:
            return tensor.view(self.module.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        if tensor.dtype == self.module.float8_e4m3fn:
            return tensor.view(self.module.uint8).cpu().numpy().view(ml_dtypes.float8_e4m3fn)
        return tensor.cpu().numpy()

    def wait(self):
        self.module.cuda.synchronize()


class Cupy:
    """cupy, which has neither bfloat16 nor fp8."""

    def __init__(self):
        self.module = pytest.importorskip("cupy", reason="cupy is not installed")

    def put(self, array):
        if array.dtype == ml_dtypes.bfloat16:
            pytest.skip("cupy has no bfloat16")
        return self.module.asarray(array)

    def get(self, array):
        if array.dtype == ml_dtypes.float8_e4m3fn:
            pytest.skip("cupy has no fp8")
        return self.module.from_dlpack(array).get()

    def wait(self):
        self.module.cuda.Device().synchronize()


@pytest.fixture(params=[Torch, Cupy], ids=["torch", "cupy"])
def on_gpu(request):
    """Puts numpy arrays on the GPU and gets results from it, through one framework."""
    return request.param()
