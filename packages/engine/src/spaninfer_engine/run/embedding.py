"""The runner of encoders: turns texts into batches without samples, and hands on their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.plan import NewSequence, Slice
from spaninfer_engine.request import SamplingParams
from spaninfer_engine.resource import Resource
from spaninfer_engine.step.batch import build_batch
from spaninfer_engine.step.device import Device, Updates
from spaninfer_engine.step.sequences import Sequences
from spaninfer_engine.texts import Text


class EmbeddingRunner(Resource):
    """Computes texts on a device that reads `sequences`: a text is a sequence of one step."""

    def __init__(self, device: Device, sequences: Sequences) -> None:
        self._device, self._sequences = device, sequences
        self._numbers = count()
        self._left: tuple[int, ...] = ()  # texts of the step before

    def run(self, texts: Sequence[Text]) -> NDArray[np.float32]:
        """Return the vectors [R C] of R texts, computed in one step; raises NoMemory."""
        ids = tuple(next(self._numbers) for _ in texts)
        updates, self._left = Updates(finished=self._left), ids
        for seq_id, text in zip(ids, texts, strict=True):
            new = NewSequence(
                seq_id, text.ids, SamplingParams(), seed=0, second_from=text.second_from
            )
            self._sequences.enter(new)
        try:
            slices = [
                _whole(seq_id, len(text.ids)) for seq_id, text in zip(ids, texts, strict=True)
            ]
            batch = build_batch(slices, self._sequences, on_host=lambda _: False)
            launched = self._device.launch(batch, updates)
            launched.wait()
            return launched.vectors()
        finally:
            for seq_id in ids:
                self._sequences.leave(seq_id)

    def close(self) -> None:
        """Give the device's memory back; idempotent."""
        self._device.close()


def _whole(seq_id: int, length: int) -> Slice:
    """Return a slice of all tokens of a text, without logits."""
    return Slice(seq_id, start=0, stop=length, logits_from=length, samples=False)
