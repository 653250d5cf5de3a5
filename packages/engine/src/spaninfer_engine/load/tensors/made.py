"""Entries of a checkpoint that are made of others when they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class MadeArray:
    """An array of a known shape and type that `make` returns."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    def read(self) -> np.ndarray:
        """The array, made anew."""
        return np.ascontiguousarray(self.make(), self.dtype)
