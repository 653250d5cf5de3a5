"""The outputs of towers that a device keeps, by the digests of what was encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias

import numpy as np

from spaninfer_engine.backends.host.tower import Encoding
from spaninfer_engine.media import TowerInput
from spaninfer_engine.ops.step import A, Rows
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.step.batch import MediaRows

Encode: TypeAlias = Callable[[Sequence[TowerInput]], Sequence[Encoding[A]]]
"""Has towers see media, in one batch; equal inputs in any batch give equal outputs."""


class Encodings(Generic[A]):
    """Encodings by digest: made by `encode`, dropped when told so."""

    def __init__(self, encode: Encode[A], ops: Ops[A]) -> None:
        self._encode, self._ops = encode, ops
        self._kept: dict[bytes, Encoding[A]] = {}

    def update(
        self, inputs: Sequence[TowerInput], dropped: Sequence[bytes]
    ) -> dict[bytes, Exception]:
        """Drop encodings and make others; return the errors of media that failed, by digest."""
        for digest in dropped:
            self._kept.pop(digest, None)
        return self._make(inputs) if inputs else {}

    def _make(self, inputs: Sequence[TowerInput]) -> dict[bytes, Exception]:
        """Encode inputs together; where that fails, one by one: each fails alone."""
        try:
            made = self._encode(inputs)
        except Exception as error:  # whatever a tower does about one picture
            if len(inputs) == 1:
                return {inputs[0].digest: error.with_traceback(None)}
        else:
            digests = [each.digest for each in inputs]
            self._kept.update(zip(digests, made, strict=True))
            return {}
        failed: dict[bytes, Exception] = {}
        for each in inputs:
            failed |= self._make([each])
        return failed

    def replaced(self, media: Sequence[MediaRows]) -> Rows[A]:
        """Return the rows that take the place of embeddings in a step."""
        vectors = [self._kept[each.digest].rows for each in media]
        return self._rows(media, vectors)

    def added(self, media: Sequence[MediaRows]) -> Mapping[int, Rows[A]] | None:
        """Return the rows that are added to the output of layers; None where there are none."""
        layers = len(self._kept[media[0].digest].deep)
        if not layers:
            return None
        deep = ([self._kept[each.digest].deep[layer] for each in media] for layer in range(layers))
        return {layer: self._rows(media, vectors) for layer, vectors in enumerate(deep)}

    def _rows(self, media: Sequence[MediaRows], vectors: Sequence[A]) -> Rows[A]:
        """Return rows of whole encodings as those of the step's tokens."""
        tokens = np.concatenate([np.arange(each.first, each.last) for each in media])
        parts = [
            whole[each.row : each.row + each.last - each.first]  # type: ignore[index]  # A has rows
            for each, whole in zip(media, vectors, strict=True)
        ]
        return Rows(self._ops.from_host(tokens), self._ops.stack_rows(parts))
