"""The host device of reference, CPU and torch: a step is computed when its result is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.backends.encodings import Encodings
from spaninfer_engine.backends.setup import DeviceSetup, KVMemory
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.rotary import Rotary
from spaninfer_engine.ops.states import StatePieces
from spaninfer_engine.ops.step import (
    A,
    AttentionMetadata,
    Rotation,
    SlotMapping,
    SpanCache,
    Step,
)
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.request.media import TowerInput
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.resource import Resource
from spaninfer_engine.step.batch import Batch, Ints, build_batch
from spaninfer_engine.step.device import Bytes, Logprobs, Samples, TokenMasks, Updates
from spaninfer_engine.step.plan import NewSequence, Slice, SpanCopy
from spaninfer_engine.step.sequences import Sequences

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Held(Generic[A]):
    """Owner of the memory: the program with its weights, the KV cache, and the backend's own."""

    forward: Callable[[Step[A]], A]
    ops: Ops[A]
    memory: KVMemory[A]
    encodings: Encodings[A] | None


class HostDevice(Resource, Generic[A]):
    """step.device.Device that reads tokens and tables of the setup's sequences in place.

    `forward` is a bound program, which returns logits [W V] or vectors [R C].
    """

    lookahead = 0

    def __init__(
        self,
        forward: Callable[[Step[A]], A],
        ops: Ops[A],
        memory: KVMemory[A],
        rotaries: tuple[Rotary, ...],
        setup: DeviceSetup,
    ) -> None:
        encodings = None if setup.encode is None else Encodings(setup.encode, ops)
        self._held: _Held[A] | None = _Held(forward, ops, memory, encodings)
        self._rotaries, self._sequences = rotaries, setup.sequences

    def warm_up(self) -> None:
        """Compute a warm-up step of one token: what a first step compiles is compiled now.

        Steps with media call the same kernels. The token's keys and values are written to the first
        span, which is not in use yet.
        """
        num_groups, span_len = len(self._sequences.tables), self._sequences.span_len
        sequences = Sequences(num_groups, max_len=1, span_len=span_len, num_rows=1)
        sequences.enter(NewSequence(0, np.zeros(1, np.int32), SamplingParams(), seed=0))
        parts = [Slice(0, start=0, stop=1, logits_from=0, samples=False, rope_seq_len=1)]
        self.compute(build_batch(parts, sequences, on_host=[0]), sequences)

    @property
    def reports_prompts(self) -> bool:
        """The host has the logits, and computes them."""
        return False

    def can_sample(self, sequence: NewSequence) -> bool:  # noqa: ARG002
        """Logits are on the host already, and so is the sampler."""
        return False

    def encode(
        self, inputs: Sequence[TowerInput], dropped: Sequence[bytes], num_steps: int = 1
    ) -> dict[bytes, Exception]:
        """Drop encodings and make a share of others, now."""
        assert self._held is not None, "the device is closed"
        assert self._held.encodings is not None, "the model has no towers"
        return self._held.encodings.update(inputs, dropped, num_steps)

    def launch(self, batch: Batch, updates: Updates) -> HostStep[A]:  # noqa: ARG002
        """Return the step, which is computed when it is waited for."""
        return HostStep(self, batch, self._sequences)

    def copy_spans(self, copies: Sequence[SpanCopy]) -> Callable[[], None]:
        """Copy rows at once: no step is being computed now."""
        assert self._held is not None, "the device is closed"
        for group, span, slot, to_host in copies:
            rows: Any = self._held.memory.caches[group].rows
            slots: Any = self._held.memory.slots[group]
            if to_host:
                slots[slot] = rows[span]
            else:
                rows[span] = slots[slot]
        return _nothing_to_wait_for

    @property
    def host_slots(self) -> tuple[Bytes, ...]:
        """The host slots, as numpy sees them."""
        assert self._held is not None, "the device is closed"
        return tuple(map(np.asarray, self._held.memory.slots))

    def run_idle_work(self) -> bool:
        """Everything is ready from the start."""
        return False

    def close(self) -> None:
        """Give weights and KV cache back; idempotent."""
        held, self._held = self._held, None
        if held is not None and held.encodings is not None:
            held.encodings.close()

    def compute(self, batch: Batch, sequences: Sequences) -> Floats:
        """Return the logits [W V] of a batch, or its vectors [R C]; raises NoMemory."""
        assert self._held is not None, "the device is closed"
        held = self._held
        try:
            step = self._step(held, batch, sequences)
            held.ops.prepare(step)
            return held.ops.to_host(held.forward(step))
        except held.ops.memory_errors:
            pass
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        raise NoMemory(batch.num_tokens, held.ops.available_bytes())

    def _step(self, held: _Held[A], batch: Batch, sequences: Sequences) -> Step[A]:
        step = build_step(batch, sequences, held.ops, held.memory.caches, self._rotaries)
        if not batch.media or held.encodings is None:
            return step
        replaced, added = held.encodings.replaced(batch.media), held.encodings.added(batch.media)
        return replace(step, replaced=replaced, added=added)


def _nothing_to_wait_for() -> None:
    """Copies have been made."""


def build_step(
    batch: Batch,
    sequences: Sequences,
    ops: Ops[A],
    caches: tuple[SpanCache[A], ...],
    rotaries: tuple[Rotary, ...],
) -> Step[A]:
    """Return the context of a batch, gathered from `sequences` by a few index operations."""
    positions, token_rows = batch.positions(), batch.token_rows()
    axes = max((rotary.num_axes for rotary in rotaries), default=1)
    places = batch.places(sequences, axes)
    return Step(
        token_ids=ops.from_host(sequences.tokens[token_rows, positions]),
        positions=ops.from_host(places),
        rotations=_rotations(batch, places, rotaries, ops),
        logit_indices=ops.from_host(batch.logit_indices()),
        attention=AttentionMetadata(
            batch=batch,
            positions=positions,
            token_rows=token_rows,
            tables=sequences.tables,
            slot_mapping=SlotMapping(batch, sequences, ops.from_host),
            caches=caches,
            second_from=sequences.second_from,
            until=batch.until(sequences),
            states=StatePieces(batch, sequences.tables, sequences.span_len),
        ),
    )


def _rotations(
    batch: Batch, places: Ints, rotaries: tuple[Rotary, ...], ops: Ops[A]
) -> tuple[Rotation[A], ...]:
    angles = (rotary.of_batch(batch, places) for rotary in rotaries)
    return tuple(Rotation(ops.from_host(cos), ops.from_host(sin)) for cos, sin in angles)


class HostStep(Generic[A]):
    """step.device.Launched: a step that is computed when it is waited for."""

    def __init__(self, device: HostDevice[A], batch: Batch, sequences: Sequences) -> None:
        self._device, self._batch, self._sequences = device, batch, sequences
        self._result: Floats | None = None

    def wait(self) -> None:
        """Compute the step."""
        self._result = self._device.compute(self._batch, self._sequences)

    @property
    def is_done(self) -> bool:
        """True once it has been computed."""
        return self._result is not None

    def mask_bits(self, count: int, vocab: int) -> Bytes:  # noqa: ARG002
        """The host samples, and masks its logits."""
        raise AssertionError("a host device samples nothing")

    def sample(self, masks: TokenMasks) -> None:  # noqa: ARG002
        """The host samples, and knows the masks."""
        raise AssertionError("a host device samples nothing")

    def samples(self) -> Samples:
        """The host samples."""
        raise AssertionError("a host device samples nothing")

    def logprobs(
        self,
        rows: tuple[int, ...],  # noqa: ARG002
        count: int,  # noqa: ARG002
    ) -> Callable[[], Logprobs]:
        """The host computes them."""
        raise AssertionError("a host device samples nothing")

    def prompt_logprobs(self) -> Logprobs | None:
        """The host computes them."""
        return None

    def logits(self) -> Floats:
        """Return the logits [W V], all of which the host asks for."""
        assert self._result is not None, "the step was not waited for"
        return self._result

    def vectors(self) -> Floats:
        """Return the vectors [R C]."""
        return self.logits()
