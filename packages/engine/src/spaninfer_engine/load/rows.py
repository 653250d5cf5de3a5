"""Row order of query and key projections: pairs of a rotation side by side, or in halves.

Meta's code, llama2.c and GGUF's llama files rotate neighbouring rows (0, 1), (2, 3) …; Hugging
Face rotates row i with row i + D/2. Both compute the same attention when the rows are permuted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spaninfer_engine.load.reader import Entry


@dataclass(frozen=True, slots=True)
class HalvedRows:
    """An array [H*D, …] whose heads' rows come in pairs, read with each head's rows in halves."""

    stored: Entry
    num_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, which the order of rows does not change."""
        return self.stored.shape

    @property
    def dtype(self) -> np.dtype:
        """The number format."""
        return self.stored.dtype

    def read(self) -> np.ndarray:
        """A copy in the order of Hugging Face."""
        array = self.stored.read()
        pairs = array.reshape(self.num_heads, -1, 2, *self.shape[1:])  # [H D/2 2 …]
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(self.shape)
