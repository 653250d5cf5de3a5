"""The context of one step: everything its operators read besides their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.states import StatePieces
from spaninfer_engine.step.batch import Batch, cut_batch
from spaninfer_engine.step.sequences import NO_SECOND, Sequences

A = TypeVar("A")  # a backend's array: numpy.ndarray, torch.Tensor

Ints = NDArray[np.int32]


class SpanCache(NamedTuple, Generic[A]):
    """The KV cache of one cache group: keys [N S L K D] and values [N S L K E]; N is the layer.

    Where the values are the first channels of the keys (MLA) they are a view of them. Of a group of
    states, `keys` are the inputs [N S n C] of convolutions and `values` the matrices [N S H D E],
    both in float32. In memory a span of all layers is contiguous: [S N L K (D or E)], see
    `ops.tensors.Tensors.cache`. `rows` are the same memory as bytes [S span_bytes], for copies of
    whole spans.
    """

    keys: A
    values: A
    rows: A


class Rotation(NamedTuple, Generic[A]):
    """Cosines and sines [T D/2] that one rotary embedding applies to each token."""

    cos: A
    sin: A


class Blend(NamedTuple, Generic[A]):
    """Weights[T k] of the table rows[T k] that make up a patch's position vector."""

    rows: A
    weights: A


class Rows(NamedTuple, Generic[A]):
    """Hidden states that come from elsewhere: vectors[n C] belong to tokens rows[n]."""

    rows: A
    vectors: A


class SlotMapping(Generic[A]):
    """The places that the keys of each token go to: span [T] and place in it [T] per cache group.

    Found when an operator first reads it: kernels that read span tables themselves never do.
    """

    __slots__ = ("_batch", "_found", "_from_host", "_sequences")

    def __init__(self, batch: Batch, sequences: Sequences, from_host: Callable[[Ints], A]) -> None:
        self._batch, self._sequences, self._from_host = batch, sequences, from_host
        self._found: dict[int, tuple[A, A]] = {}

    def __getitem__(self, group: int) -> tuple[A, A]:
        """Return the spans and places of a cache group."""
        if group not in self._found:
            batch, sequences = self._batch, self._sequences
            index, place = np.divmod(batch.positions(), np.int32(sequences.span_len))
            spans = sequences.tables[group][batch.token_rows(), index]
            self._found[group] = self._from_host(spans), self._from_host(place)
        return self._found[group]


@dataclass(frozen=True, slots=True)
class AttentionMetadata(Generic[A]):
    """Attention metadata of backends whose indices lie on the host."""

    batch: Batch
    positions: Ints  # [T] index of the token in its sequence: decides what it may see
    token_rows: Ints  # [T] row of the span tables
    tables: tuple[Ints, ...]  # per cache group [R M]: the spans of each sequence in order
    slot_mapping: SlotMapping[A] | None  # None without caches
    caches: tuple[SpanCache[A], ...]  # per cache group
    second_from: Ints  # [R] by table row: the position from which a pair's second text begins
    windows: AttentionMetadata[A] | None = None  # towers: the same rows cut into windows
    until: Ints | None = None  # [T] position behind the last that a token sees; None: its own
    states: StatePieces | None = None  # None without caches

    def token_types(self) -> Ints:
        """Return the type of every token, [T]: 1 in the second text of a pair, else 0."""
        return (self.positions >= self.second_from[self.token_rows]).astype(np.int32)

    def append(self, key: A, value: A | None, *, group: int, layer: int) -> None:
        """Write keys and values [T K D] into the spans; see `ops.table.Ops.append`."""
        assert self.slot_mapping is not None, "a model with a KV cache has slots"
        keys, values, _ = cast(SpanCache[Any], self.caches[group])
        slots = self.slot_mapping[group]
        keys[layer][slots] = key
        if value is not None:
            values[layer][slots] = value


@dataclass(frozen=True, slots=True)
class Step(Generic[A]):
    """T tokens, slice after slice, as arrays of a backend."""

    token_ids: A  # [T]
    positions: A  # [axes T] what position embeddings see; in text, all axes are equal
    rotations: tuple[Rotation[A], ...]  # per rotary embedding of the program
    logit_indices: A  # [W] tokens that get logits
    attention: Any  # the backend's attention metadata; only its operators read it
    replaced: Rows[A] | None = None  # media embeddings take the place of token embeddings
    added: Mapping[int, Rows[A]] | None = None  # by layer: added to its output (deepstack)
    features: A | None = None  # [T F] towers: what is read in place of tokens
    blends: tuple[Blend[A], ...] = ()  # towers: how position tables are interpolated

    def attends_in(self, *, windows: bool) -> Any:
        """Return the attention metadata of the step's slices, or of a tower's windows."""
        return self.attention.windows if windows else self.attention

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)  # type: ignore[arg-type]  # A has a length

    @property
    def has_media(self) -> bool:
        """True if some hidden states come from elsewhere."""
        return self.replaced is not None or self.added is not None


def metadata_of_runs(
    lens: Ints, windows: AttentionMetadata[A] | None = None
) -> AttentionMetadata[A]:
    """Return the metadata of rows that attend within runs of these lengths; nothing is kept."""
    batch = cut_batch(lens)
    return AttentionMetadata(
        batch=batch,
        positions=batch.positions(),
        token_rows=batch.token_rows(),
        tables=(),
        slot_mapping=None,
        caches=(),
        second_from=np.full(len(lens), NO_SECOND),
        windows=windows,
    )
