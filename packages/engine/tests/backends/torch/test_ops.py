"""Arrays on their way to torch."""

import numpy as np
import pytest

pytest.importorskip("torch")

from spaninfer_engine.backends.torch.ops import TorchOps


@pytest.mark.parametrize("array", [
    np.arange(12, dtype=np.float32).reshape(3, 4).T,
    np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4)),
    np.broadcast_to(np.arange(4, dtype=np.int32), (3, 4)),
    np.arange(24, dtype=np.float32).reshape(6, 4)[::2],
], ids=["turned", "by columns", "repeated", "every other row"])  # fmt: skip
def test_arrays_from_the_host_lie_row_after_row(array: np.ndarray) -> None:
    tensor = TorchOps().from_host(array)

    assert tensor.is_contiguous()
    np.testing.assert_array_equal(tensor.numpy(), array)
