"""The outputs of towers that a device keeps, by the digests of what was encoded."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias

import numpy as np

from spaninfer_engine.backends.host.tower import Encoding
from spaninfer_engine.ops.bound import drained
from spaninfer_engine.ops.step import A, Rows
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.step.batch import MediaRows

_Work: TypeAlias = Generator[int, None, Sequence[Encoding[A]]]


class Encode(Protocol[A]):
    """The towers of a model; equal inputs in any batch give equal outputs."""

    def __call__(
        self, inputs: Sequence[TowerInput], /
    ) -> Generator[int, None, Sequence[Encoding[A]]]:
        """Have each medium seen, and yield behind every kernel how many are left."""
        ...

    def close(self) -> None:
        """Give the weights back; idempotent."""
        ...


class _UnderWay(NamedTuple, Generic[A]):
    """Encodings that are being made."""

    inputs: Sequence[TowerInput]
    work: _Work[A]


class Encodings(Generic[A]):
    """Encodings by digest: made by `encode`, dropped on request."""

    def __init__(self, encode: Encode[A], ops: Ops[A]) -> None:
        self._encode, self._ops = encode, ops
        self._kept: dict[bytes, Encoding[A]] = {}
        self._under_way: _UnderWay[A] | None = None

    def close(self) -> None:
        """Give encodings and the weights of towers back; idempotent."""
        self._kept, self._under_way = {}, None
        self._encode.close()

    def update(
        self, inputs: Sequence[TowerInput], dropped: Sequence[bytes], num_steps: int = 1
    ) -> dict[bytes, Exception]:
        """Drop encodings and begin others, or go on with them; return the errors of media that
        failed, by digest.

        All are there after `num_steps` calls, this one included, which share the work.
        """
        for digest in dropped:
            self._kept.pop(digest, None)
        failed: dict[bytes, Exception] = {}
        if inputs:
            failed = self._go_on(1)
            self._under_way = _UnderWay(inputs, self._encode(inputs))
        return failed | self._go_on(num_steps)

    def _go_on(self, num_steps: int) -> dict[bytes, Exception]:
        """Do a share of what is under way: all of it in the last step."""
        if self._under_way is None:
            return {}
        under_way, self._under_way = self._under_way, None
        if num_steps == 1:
            return self._make(*under_way)
        try:
            left = next(under_way.work)
            for _ in range((left + 1) // num_steps):
                next(under_way.work)
        except StopIteration as done:
            self._keep(under_way.inputs, done.value)
        except Exception:  # said by `_make`, of each by itself
            return self._make(under_way.inputs, self._encode(under_way.inputs))
        else:
            self._under_way = under_way
        return {}

    def _make(self, inputs: Sequence[TowerInput], work: _Work[A]) -> dict[bytes, Exception]:
        """Encode inputs together; where that fails, one by one: each fails alone."""
        try:
            made = drained(work)
        except Exception as error:  # whatever a tower does about one picture
            if len(inputs) == 1:
                return {inputs[0].digest: error.with_traceback(None)}
        else:
            self._keep(inputs, made)
            return {}
        failed: dict[bytes, Exception] = {}
        for each in inputs:
            failed |= self._make([each], self._encode([each]))
        return failed

    def _keep(self, inputs: Sequence[TowerInput], made: Sequence[Encoding[A]]) -> None:
        self._kept.update(zip((each.digest for each in inputs), made, strict=True))

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
