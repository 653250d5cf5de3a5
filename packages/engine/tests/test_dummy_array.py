import numpy as np
import pytest
from spaninfer_engine.dummy_array import DummyArray


def test_noise_becomes_an_array_of_its_mean_and_deviation():
    array = np.asarray(DummyArray((300, 200), mean=2.0, std=0.5, seed=7))

    assert (array.shape, array.dtype) == ((300, 200), np.float32)
    assert array.mean() == pytest.approx(2.0, abs=0.01)
    assert array.std() == pytest.approx(0.5, abs=0.01)


def test_the_same_seed_gives_the_same_numbers_in_any_format():
    noise = DummyArray((4, 4), mean=0.0, std=1.0, seed=7)

    assert np.array_equal(np.asarray(noise), np.asarray(noise))
    assert np.array_equal(np.asarray(noise, np.float16), np.asarray(noise).astype(np.float16))
    assert not np.array_equal(np.asarray(noise), np.asarray(DummyArray((4, 4), 0.0, 1.0, seed=8)))
