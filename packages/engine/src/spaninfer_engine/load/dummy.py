"""Dummy weights: random numbers of the right shapes, for benchmarks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from spaninfer_engine.dummy_array import DummyArray
from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.spec.weight_nodes import Weight


class DummyReader:
    """Noise for every weight of a model, as large as training leaves it.

    Matrices keep the size of what they multiply (deviation 1 / sqrt(inputs)), vectors that scale
    lie around 1, those that are added around 0. So activations stay in range, and a 16-bit model
    computes with numbers like a real one's: zeros would draw less power, and run faster.
    """

    def __init__(self, weights: Iterable[Weight], seed: int) -> None:
        self._shapes = {weight.name: weight.shape for weight in weights}
        self._seed = seed

    def read(self, name: str) -> DummyArray:
        """The weight of this name; the same noise for the same name and seed."""
        if name not in self._shapes:
            raise CheckpointError(f"a model of random weights has no {name!r}")
        shape = self._shapes[name]
        is_matrix = len(shape) > 1
        return DummyArray(
            shape,
            mean=0.0 if is_matrix or name.endswith("bias") else 1.0,
            std=shape[-1] ** -0.5 if is_matrix else _VECTOR_STD,
            seed=zlib.crc32(name.encode(), self._seed),
        )

    def quantized(self, name: str) -> None:  # noqa: ARG002
        """None: noise is drawn in the numbers that are computed in."""
        return None


_VECTOR_STD = 0.02  # what models are initialised with
