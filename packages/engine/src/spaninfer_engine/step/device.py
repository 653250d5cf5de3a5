"""The device protocol: computes batches, and answers with sampled tokens, logits or vectors.

Reference, CPU, torch and CUDA implement it. A device reads tokens and span tables from the
`Sequences` that it was made with, or keeps a copy of them that follows the updates of each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.plan import NewSequence, SpanCopy, TableUpdate

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


SampledToken: TypeAlias = tuple[int, int, int]
"""A token that the host sampled: sequence id, position, token id."""


@dataclass(frozen=True, slots=True)
class Updates:
    """Changes of `Sequences` since the launch before, but for sequences that entered."""

    table_updates: tuple[TableUpdate, ...] = ()
    tokens: tuple[SampledToken, ...] = ()
    finished: tuple[int, ...] = ()  # sequences that are known no more


class SampleStatus(IntEnum):
    """Reason why a row of logits has no token."""

    SAMPLED = 0
    ALL_MASKED = 1  # no token is allowed
    INFINITE = 2  # the largest logit is infinite
    NOT_A_NUMBER = 3  # there is a NaN


class Samples(NamedTuple):
    """Tokens that the device sampled, per row of logits.

    They mean something in the last row of slices whose tokens the device samples.
    """

    token_ids: Ints  # [W]
    status: Ints  # [W] of SampleStatus


class Logprobs(NamedTuple):
    """Log-probabilities of tokens, of one per row of logits.

    The token's, its rank (1 is the most likely), and the n most likely tokens with theirs;
    ids are -1 where fewer tokens are possible.
    """

    chosen: Floats  # [W]
    ranks: Ints  # [W]
    top_ids: Ints  # [W n]
    top: Floats  # [W n]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Token masks of a batch: `bits`, as `Launched.mask_bits` has returned them, a bit per token,
    the lowest first. Those whose place is in `fixed` are read-only arrays [4 ceil(V / 32)] instead,
    which never change.
    """

    slices: Ints  # [M] numbers of the slices that have one
    bits: Bytes  # [M 4 ceil(V / 32)]
    fixed: Mapping[int, Bytes]


class Launched(Protocol):
    """A step under way; its results may be read after `wait`."""

    def mask_bits(self, count: int, vocab: int) -> Bytes:
        """Return memory for so many token masks [M 4 ceil(V / 32)], with any content."""
        ...

    def sample(self, masks: TokenMasks) -> None:
        """Sample the tokens of a batch with `masked` slices, which waits for this.

        Called once, before the next launch: forward passes do not wait for masks.
        """
        ...

    def wait(self) -> None:
        """Wait for the step, or compute it now; raises NoMemory where the device lacks it."""
        ...

    @property
    def is_done(self) -> bool:
        """True if `wait` would return at once; asked only of devices that compute by themselves."""
        ...

    def samples(self) -> Samples:
        """Return the tokens that the device sampled."""
        ...

    def logprobs(self, rows: tuple[int, ...], count: int) -> Callable[[], Logprobs]:
        """Copy log-probabilities of the tokens sampled from these rows of logits, with the `count`
        most likely ones; return what makes arrays of the copy. Their sequences have asked.
        """
        ...

    def prompt_logprobs(self) -> Logprobs | None:
        """Return log-probabilities of the tokens of `Batch.reported`, [N]; None without any."""
        ...

    def logits(self) -> Floats:
        """Return the logits [N V] of `batch.host_logits`."""
        ...


class LaunchedTexts(Protocol):
    """A step of texts under way."""

    def wait(self) -> None:
        """Wait for the step, or compute it now; raises NoMemory where the device lacks it."""
        ...

    def vectors(self) -> Floats:
        """Return the vectors [R C]; read after `wait`."""
        ...


class TextDevice(Protocol):
    """Computes batches of whole texts, of which nothing is kept, in the order of their launches."""

    @property
    def lookahead(self) -> int:
        """Steps that may be launched before the oldest one's vectors are read, as of a Device."""
        ...

    def launch(self, batch: Batch, updates: Updates) -> LaunchedTexts:
        """Begin a step; raises NoMemory where the device lacks it, and others may follow."""
        ...

    def close(self) -> None:
        """Wait for what is under way and give the memory back; idempotent."""
        ...


class Device(Protocol):
    """Computes batches in the order of their launches."""

    @property
    def lookahead(self) -> int:
        """Steps that may be launched before the oldest one's results are read.

        0: a step is computed while its results are waited for.
        """
        ...

    @property
    def reports_prompts(self) -> bool:
        """True if the device computes the log-probabilities of prompts; else the host does."""
        ...

    def can_sample(self, sequence: NewSequence) -> bool:
        """Return True if the device can sample the sequence's tokens; else the host does."""
        ...

    def encode(
        self, inputs: Sequence[TowerInput], dropped: Sequence[bytes], num_steps: int = 1
    ) -> dict[bytes, Exception]:
        """Run towers on media, and keep their rows by digest for the steps launched from now on.

        `dropped` are digests that no later step reads; their memory is given back first. The work
        is shared by `num_steps` steps: each calls this with one less and no inputs, and the rows
        are there in the last one. Returns the errors of media that could not be encoded.
        """
        ...

    def launch(self, batch: Batch, updates: Updates) -> Launched:
        """Begin a step; returns at once. The media of the batch have been encoded.

        Raises NoMemory where the device lacks it. The step does not take place then; others may
        follow, after the results of those before have been read.
        """
        ...

    def copy_spans(self, copies: Sequence[SpanCopy]) -> Callable[[], None]:
        """Begin copies between the KV cache and host slots; return what waits for them.

        They take place in this order, behind the steps launched before and in front of the next.
        """
        ...

    @property
    def host_slots(self) -> tuple[Bytes, ...]:
        """Host slots per cache group, bytes [slots span_bytes]; () without KV cache offloading."""
        ...

    def run_idle_work(self) -> bool:
        """Do up to 0.1 s of work that later steps profit from; False if none is left."""
        ...

    def close(self) -> None:
        """Wait for what is under way and give the memory back; idempotent."""
        ...
