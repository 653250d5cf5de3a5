import numpy as np
import pytest
from spaninfer_op_reference import to_bfloat16

torch = pytest.importorskip("torch", reason="torch has bfloat16")


def test_every_kind_of_number_is_rounded_as_torch_rounds():
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    numbers = np.concatenate([bits, ties, [0x7F7FFFFF, 0x7F800000, 0x1]]).astype(np.uint32)
    x = numbers.view(np.float32)
    x = x[~np.isnan(x)]

    y = to_bfloat16(x)

    np.testing.assert_array_equal(y, torch.from_numpy(x).bfloat16().float().numpy())


def test_not_a_number_stays_one():
    assert np.isnan(to_bfloat16(np.array([np.nan, -np.nan], np.float32))).all()
