"""The public names of the package."""

from types import ModuleType

import spaninfer_kernels_cuda


def test_everything_visible_is_promised():
    visible = {
        name
        for name, value in vars(spaninfer_kernels_cuda).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible <= set(spaninfer_kernels_cuda.__all__)
    assert all(hasattr(spaninfer_kernels_cuda, name) for name in spaninfer_kernels_cuda.__all__)
