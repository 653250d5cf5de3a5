"""The runner of encoders: turns texts into batches without samples, and hands on their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spaninfer_engine.request.texts import Text
from spaninfer_engine.resource import Resource
from spaninfer_engine.spec.pooling_nodes import Pool
from spaninfer_engine.step.batch import cut_batch
from spaninfer_engine.step.device import LaunchedTexts, TextDevice, Updates
from spaninfer_engine.step.sequences import Sequences


class EmbeddingRunner(Resource):
    """Computes texts on a device that reads `sequences`: a text is there for one step."""

    def __init__(self, device: TextDevice, sequences: Sequences, pool: Pool) -> None:
        self._device, self._sequences, self._pool = device, sequences, pool

    @property
    def lookahead(self) -> int:
        """Steps that may be launched before the oldest one is waited for."""
        return self._device.lookahead

    def launch(self, texts: Sequence[Text]) -> LaunchedTexts:
        """Begin to compute the vectors [R C] of R texts, in one step; raises NoMemory."""
        self._sequences.put_texts(
            [text.ids for text in texts], [text.second_from for text in texts]
        )
        lengths = np.array([len(text.ids) for text in texts], np.int32)
        return self._device.launch(cut_batch(lengths, self._pool.token), Updates())

    def close(self) -> None:
        """Give the device's memory back; idempotent."""
        self._device.close()
