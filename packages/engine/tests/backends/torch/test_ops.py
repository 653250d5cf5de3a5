"""Conversion of arrays to torch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from spaninfer_engine.backends.torch.ops import TorchOps  # noqa: E402
from spaninfer_engine.request.media import Levels  # noqa: E402


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_bytes_become_the_numbers_that_their_channel_says(dtype: str, repeats: int) -> None:
    rng = np.random.default_rng(0)
    levels = Levels(rng.standard_normal((3, 256), np.float32), repeats)
    codes = rng.integers(0, 256, (5, 3 * 8), np.uint8)
    by_hand = [
        levels.values[channel, codes[row, 8 * channel + column]]
        for row in range(5)
        for channel in range(3)
        for _ in range(repeats)
        for column in range(8)
    ]

    found = TorchOps(dtype).from_levels(codes, levels)  # type: ignore[arg-type]

    wanted = np.array(by_hand, np.float32).reshape(5, -1)
    np.testing.assert_array_equal(levels.numbers(codes), wanted)
    rounded = torch.from_numpy(wanted).to(getattr(torch, dtype))
    assert torch.equal(found, rounded)


@pytest.mark.gpu
def test_on_a_gpu_bytes_become_the_same_numbers() -> None:
    rng = np.random.default_rng(1)
    levels = Levels(rng.standard_normal((3, 256), np.float32), 2)
    codes = rng.integers(0, 256, (5476, 588), np.uint8)

    found = TorchOps("bfloat16", "cuda").from_levels(codes, levels)

    assert torch.equal(found.cpu(), torch.from_numpy(levels.numbers(codes)).bfloat16())
