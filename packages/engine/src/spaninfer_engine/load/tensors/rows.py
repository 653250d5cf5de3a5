"""Row order of query and key projections: pairs of a rotation side by side, or in halves.

Meta's code, llama2.c and GGUF's llama files rotate neighbouring rows (0, 1), (2, 3) …; Hugging
Face rotates row i with row i + D/2. Both compute the same attention when the rows are permuted.
"""

from __future__ import annotations

import numpy as np

from spaninfer_engine.load.tensors.made import MadeArray
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import Entry


def halved_rows(stored: Entry, num_heads: int) -> Entry:
    """Return an array [H*D, …] whose heads' rows come in pairs with each head's rows in halves.

    A quantised weight stays as it is stored: its rows are moved as codes.
    """
    if isinstance(stored, QuantizedEntry):
        pairs = np.arange(stored.shape[0]).reshape(num_heads, -1, 2)
        return stored.permuted(pairs.swapaxes(1, 2).reshape(-1))

    def halves() -> np.ndarray:
        pairs = stored.read().reshape(num_heads, -1, 2, *stored.shape[1:])  # [H D/2 2 …]
        return pairs.swapaxes(1, 2).reshape(stored.shape)

    return MadeArray(stored.shape, stored.dtype, halves)
