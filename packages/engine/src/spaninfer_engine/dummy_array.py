"""Random weights without storage: numbers are generated where and when they are needed.

`load` makes them for models without weights and the backends of `ops` draw them, on a device
without a detour through host memory; the two do not know each other, so both meet here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class DummyArray:
    """Independent normal numbers; `seed` decides which.

    `np.asarray` draws them in host memory, in float32. A backend may draw others of the same mean
    and deviation, in its own number format.
    """

    shape: tuple[int, ...]
    mean: float
    std: float
    seed: int

    def __array__(
        self,
        dtype: np.dtype[Any] | None = None,
        copy: bool | None = None,  # numpy asks with it; it is always a new array
    ) -> np.ndarray[Any, Any]:
        drawn = np.random.default_rng(self.seed).standard_normal(self.shape, np.float32)
        drawn *= self.std
        drawn += self.mean
        return drawn if dtype is None else drawn.astype(dtype, copy=False)
