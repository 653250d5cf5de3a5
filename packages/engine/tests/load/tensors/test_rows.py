from dataclasses import dataclass

import numpy as np
from spaninfer_engine.load.tensors.rows import halved_rows


@dataclass
class Stored:
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def read(self) -> np.ndarray:
        return self.array


def test_pairs_of_rows_come_out_in_halves_per_head():
    rows = np.arange(8)[:, None] * np.ones((1, 3))

    read = halved_rows(Stored(rows), num_heads=2).read()

    assert read[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rotating_pairs_before_is_rotating_halves_after():
    rng = np.random.default_rng(0)
    query, key, hidden = rng.standard_normal((3, 8, 8))
    turn = np.exp(1j * rng.standard_normal(4))  # one rotation per pair of a head of 8

    def in_pairs(x):
        turned = (x[0::2] + 1j * x[1::2]) * turn[:, None]
        return np.stack([turned.real, turned.imag], 1).reshape(8, -1)

    def in_halves(x):
        turned = (x[:4] + 1j * x[4:]) * turn[:, None]
        return np.concatenate([turned.real, turned.imag])

    paired = in_pairs(query @ hidden).T @ (key @ hidden)
    halved = in_halves(halved_rows(Stored(query), 1).read() @ hidden).T @ (
        halved_rows(Stored(key), 1).read() @ hidden
    )

    np.testing.assert_allclose(paired, halved)


def test_a_bias_is_ordered_like_the_rows_of_its_weight():
    bias = halved_rows(Stored(np.arange(4.0)), num_heads=1)

    assert bias.read().tolist() == [0, 2, 1, 3]
