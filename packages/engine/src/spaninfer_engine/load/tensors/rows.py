"""Row order of query and key projections: pairs of a rotation side by side, or in halves.

Meta's code, llama2.c and GGUF's llama files rotate neighbouring rows (0, 1), (2, 3) …; Hugging
Face rotates row i with row i + D/2. Both compute the same attention when the rows are permuted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import Entry


def halved_rows(stored: Entry, num_heads: int) -> Entry:
    """An array whose heads' rows come in pairs, read with each head's rows in halves.

    A quantised weight stays as it is stored: its rows are moved as codes.
    """
    if not isinstance(stored, QuantizedEntry):
        return HalvedRows(stored, num_heads)
    pairs = np.arange(stored.shape[0]).reshape(num_heads, -1, 2)
    return stored.permuted(pairs.swapaxes(1, 2).reshape(-1))


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
