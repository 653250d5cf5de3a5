import numpy as np
import pytest
from spaninfer_op_reference import E4M3_MOST, to_bfloat16, to_e4m3

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


def test_8_bit_numbers_are_rounded_as_torch_rounds():
    draw = np.random.default_rng(0)
    every = np.arange(256, dtype=np.uint8)
    exact = torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy()
    exact = np.sort(exact[~np.isnan(exact)])
    ties = (exact[1:] + exact[:-1]) / 2
    random = draw.normal(size=100_000) * 10.0 ** draw.uniform(-5, 3, 100_000)
    x = np.concatenate([exact, ties, random]).astype(np.float32)
    x = x[np.abs(x) <= E4M3_MOST]

    y = to_e4m3(x)

    np.testing.assert_array_equal(y, torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy())


def test_8_bit_numbers_stop_at_the_largest_and_keep_what_is_no_number():
    y = to_e4m3(np.array([500.0, -np.inf, 1e-9, np.nan]))

    assert y[:3].tolist() == [448, -448, 0]
    assert np.isnan(y[3])
