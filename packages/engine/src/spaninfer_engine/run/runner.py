"""The runner: turns plans into batches, launches them on a device, and samples what the host must.

    lookahead 0   launch 7, compute and read 7, launch 8, …
    lookahead 1   launch 8, read 7, launch 9, read 8, …    while the device computes

Tokens that the device samples go from step to step on the device. Where the host samples, it does
so before the next step is launched. Token masks of step 8 are begun when 7 is read; where other
threads compute them, they are awaited before 9 is launched.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import NoToken as NoTokenInRow

from spaninfer_engine.errors import NoMemory, NoToken, as_exception
from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.resource import Resource
from spaninfer_engine.run import device_logprobs
from spaninfer_engine.run.in_flight import InFlight, Outcome
from spaninfer_engine.run.step_masks import StepMasks
from spaninfer_engine.step.batch import Batch, build_batch
from spaninfer_engine.step.device import (
    Bytes,
    Device,
    SampledToken,
    SampleStatus,
    Updates,
)
from spaninfer_engine.step.plan import NewSequence, SpanCopy, StepPlan, StepResult
from spaninfer_engine.step.sequences import Sequences

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int32]

_log = logging.getLogger(__name__)

_SAMPLED = int(SampleStatus.SAMPLED)  # comparing with a member takes three times as long
_LARGEST_LOGIT = {
    SampleStatus.ALL_MASKED: -math.inf,
    SampleStatus.INFINITE: math.inf,
    SampleStatus.NOT_A_NUMBER: math.nan,
}


class HostSampler(Protocol):
    """Samples from logits on the host (run.sampler.Sampler), for sequences that may need it."""

    def enter(self, sequence: NewSequence) -> None:
        """Remember the sampling parameters of a sequence."""
        ...

    def leave(self, seq_id: int) -> None:
        """Forget a sequence."""
        ...

    def sample(
        self,
        logits: Logits,
        seq_ids: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[TokenIds],
    ) -> tuple[list[int], dict[int, LogprobAt], dict[int, Exception]]:
        """Return a token per row of logits[R V], log-probabilities and failures by sequence.

        Row i is about position `positions[i]` of sequence `seq_ids[i]`, whose tokens before that
        position are `tokens[i]`. The token of a sequence that failed means nothing. Rows of
        sequences with token masks are overwritten.
        """
        ...

    def prompt_logprobs(self, seq_id: int, logits: Logits, next_ids: TokenIds) -> TokenLogprobs:
        """Return the log-probability of next_ids[i] under logits[i] of logits[N V]."""
        ...


class Runner(Resource):
    """Runs plans on a device that reads `sequences`."""

    def __init__(
        self, device: Device, sequences: Sequences, sampler: HostSampler, *, vocab: int
    ) -> None:
        self._device, self._sequences, self._sampler = device, sequences, sampler
        self._vocab = vocab
        self._failed: set[int] = set()  # sequences that failed and have not left yet
        self._masks = StepMasks(sequences, self._failed, vocab)
        self._unfit: dict[int, Exception] = {}  # sequences whose parameters cannot be followed
        self._on_host: set[int] = set()  # sequences whose tokens the host samples
        self._num_logprobs: dict[int, int] = {}  # of those that the device samples
        self._newest: InFlight | None = None
        self._unencoded: dict[bytes, Exception] = {}  # by digest of media that towers failed on
        self._sampled: list[SampledToken] = []  # by the host, unknown to the device

    @property
    def lookahead(self) -> int:
        """Plans that `start` takes before the oldest one's result must be fetched."""
        return self._device.lookahead

    def start(self, plan: StepPlan) -> Outcome:
        """Launch the plan's step; where there is no memory for it, each of its sequences fails."""
        newest = self._newest
        if newest is not None and newest.is_sampled_on_host:
            self._resolve(newest)  # the step reads tokens that are not sampled yet
        if newest is not None and plan.new_sequences:
            self._masks.finish(newest)  # its matchers may read rows that they take
        self._update(plan)
        batch = build_batch(
            plan.slices,
            self._sequences,
            self._on_host,
            self._masks.seq_ids,
            device_reports=self._device.reports_prompts,
        )
        if newest is not None:
            self._masks.finish(newest)
            assert not newest.awaits_masks, "the result in front of it was not requested"
        failed_encodings = self._encode(plan)
        unencoded = self._without_rows(batch)
        if unencoded:
            batch = replace(batch, media=tuple(x for x in batch.media if x.slice not in unencoded))
        updates = Updates(plan.table_updates, tuple(self._sampled), plan.finished)
        self._sampled.clear()
        try:
            launched = self._device.launch(batch, updates)
        except NoMemory as error:
            if newest is not None:
                self._resolve(newest)  # the device copies all sequences anew, with its tokens
            return Outcome(partial(self._give_up, plan, error, failed_encodings))
        self._newest = step = InFlight(
            plan,
            batch,
            launched,
            batch.num_masked > 0,
            unencoded=unencoded,
            failed_encodings=failed_encodings,
        )
        self._masks.begin(step)
        return Outcome(partial(self._resolve, step), step)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's step, and wait for it."""
        return self.start(plan)()

    def copy_spans(self, copies: Sequence[SpanCopy]) -> Callable[[], None]:
        """Begin copies between spans and host slots, in order; return what waits for them."""
        return self._device.copy_spans(copies)

    @property
    def host_slots(self) -> tuple[Bytes, ...]:
        """The host slots of each cache group, as bytes; () without KV cache offloading."""
        return self._device.host_slots

    def run_idle_work(self) -> bool:
        """Do up to 0.1 s of idle work (e.g. capture one CUDA graph); False when none is left."""
        return self._device.run_idle_work()

    def close(self) -> None:
        """Give the device's memory back; idempotent."""
        if self._newest is not None and self._newest.masks is not None:
            self._newest.masks.wait()  # they are written to that memory
        self._device.close()

    # ---- before a step ---------------------------------------------------------------------------

    def _encode(self, plan: StepPlan) -> frozenset[bytes]:
        """Encode media that coming steps read; return the digests of those that failed."""
        if not (plan.encode or plan.encode_steps or plan.dropped_encodings):
            return frozenset()
        for digest in (*plan.dropped_encodings, *(each.digest for each in plan.encode)):
            self._unencoded.pop(digest, None)
        num_steps = max(plan.encode_steps, 1)
        failed = self._device.encode(plan.encode, plan.dropped_encodings, num_steps)
        self._unencoded |= failed
        return frozenset(failed)

    def _without_rows(self, batch: Batch) -> dict[int, Exception]:
        """Return the slices that lack rows of media, and why."""
        if not batch.media:
            return {}
        lacking = (rows for rows in batch.media if rows.digest in self._unencoded)
        return {rows.slice: self._unencoded[rows.digest] for rows in lacking}

    def _update(self, plan: StepPlan) -> None:
        for seq_id in plan.finished:
            self._sequences.leave(seq_id)
            if self._needs_sampler(seq_id):
                self._sampler.leave(seq_id)
            self._on_host.discard(seq_id)
            self._num_logprobs.pop(seq_id, None)
            self._masks.leave(seq_id)
            self._failed.discard(seq_id)
            self._unfit.pop(seq_id, None)
        for sequence in plan.new_sequences:
            self._enter(sequence)
        for update in plan.table_updates:
            self._sequences.update_table(update)

    def _enter(self, sequence: NewSequence) -> None:
        self._sequences.enter(sequence)
        try:
            self._follow(sequence)
        except BaseException as error:  # as of a grammar; it fails alone with its first step
            self._unfit[sequence.seq_id] = as_exception(error)
            plain = NewSequence(
                sequence.seq_id, sequence.token_ids, SamplingParams(), sequence.seed
            )
            self._follow(plain)

    def _follow(self, sequence: NewSequence) -> None:
        """Note how the tokens of a sequence are sampled, and where."""
        is_on_host = not self._device.can_sample(sequence)
        if is_on_host:
            self._on_host.add(sequence.seq_id)
        if self._needs_sampler(sequence.seq_id):
            self._sampler.enter(sequence)
        if is_on_host:
            return
        self._masks.enter(sequence)
        if sequence.sampling.logprobs is not None:
            self._num_logprobs[sequence.seq_id] = sequence.sampling.logprobs

    def _needs_sampler(self, seq_id: int) -> bool:
        """Return True if the host may sample a sequence's tokens, or report on its prompt."""
        return seq_id in self._on_host or not self._device.reports_prompts

    def _give_up(
        self, plan: StepPlan, error: NoMemory, failed_encodings: frozenset[bytes]
    ) -> StepResult:
        _log.warning("%s", error)
        result = StepResult.of_none(plan, error, failed_encodings)
        self._failed.update(result.failed)
        return result

    # ---- after a step ----------------------------------------------------------------------------

    def _resolve(self, step: InFlight) -> StepResult:
        """Wait for a step, if that has not been done, and return its result."""
        if step.result is None:
            try:
                self._masks.begin(step)  # those before have been settled: its tokens are known
                self._masks.finish(step)
                step.result = self._result(step)
            except NoMemory as error:
                step.result = self._give_up(step.plan, error, step.failed_encodings)
            if self._newest is not None:
                self._masks.begin(self._newest)
        return step.result

    def _result(self, step: InFlight) -> StepResult:
        batch = step.batch
        tokens: list[int | None] = [None] * batch.num_slices
        logprobs: dict[int, LogprobAt] = {}
        failed: dict[int, Exception] = {}
        prompt_logprobs: dict[int, TokenLogprobs] = {}
        step.launched.wait()
        if batch.device_reports:
            prompt_logprobs = device_logprobs.prompt_logprobs(step, self._sequences, self._vocab)
        if len(batch.host_logits):
            logits = step.launched.logits()
            if not batch.device_reports:
                prompt_logprobs = self._prompt_logprobs(step, logits, failed)
            logprobs |= self._sample_on_host(batch, logits, tokens, failed)
        if batch.num_device_samples:
            logprobs |= self._take_samples(step, tokens, failed)
        for index, error in step.unencoded.items():
            failed[batch.seq_ids[index]] = error
        if self._unfit:
            ids = self._unfit.keys() & set(batch.seq_ids)
            failed |= {seq_id: self._unfit[seq_id] for seq_id in ids}
        if failed:
            for index, seq_id in enumerate(batch.seq_ids):
                if seq_id in failed:
                    tokens[index] = None
        self._sequences.write(batch.seq_ids, batch.stops.tolist(), tokens)
        self._failed.update(failed)
        return StepResult(
            step.plan.number,
            tuple(tokens),
            logprobs,
            prompt_logprobs,
            failed,
            failed_encodings=step.failed_encodings,
        )

    def _take_samples(
        self, step: InFlight, tokens: list[int | None], failed: dict[int, Exception]
    ) -> dict[int, LogprobAt]:
        """Take in the tokens that the device sampled; return their log-probabilities."""
        batch, (token_ids, status) = step.batch, step.launched.samples()
        last = batch.logit_start_loc[1:] - 1
        sampled, statuses = token_ids[last].tolist(), status[last].tolist()
        indices: Sequence[int] = range(batch.num_slices)
        if batch.num_device_samples < batch.num_slices:
            indices = np.flatnonzero(batch.samples_on_device).tolist()
        for index in indices:
            if statuses[index] == _SAMPLED:
                tokens[index] = sampled[index]
                continue
            why = NoTokenInRow(index, _LARGEST_LOGIT[SampleStatus(statuses[index])])
            failed[batch.seq_ids[index]] = NoToken(str(why))
        for index, error in step.mask_errors.items():
            tokens[index] = None
            failed[batch.seq_ids[index]] = error
        return device_logprobs.sampled_logprobs(step, tokens, self._num_logprobs)

    def _sample_on_host(
        self,
        batch: Batch,
        logits: Logits,
        tokens: list[int | None],
        failed: dict[int, Exception],
    ) -> dict[int, LogprobAt]:
        """Sample into `tokens` what the host must, and note it for the device."""
        known_ids = self._sequences.by_id  # others have ended since the step was launched
        indices = [
            index
            for index in np.flatnonzero(batch.samples & ~batch.samples_on_device).tolist()
            if batch.seq_ids[index] in known_ids
        ]
        if not indices:
            return {}
        if len(indices) < len(logits):
            last = batch.logit_start_loc[1:][indices] - 1
            logits = logits[np.searchsorted(batch.host_logits, last)]
        all_stops = batch.stops.tolist()
        ids, stops = [batch.seq_ids[i] for i in indices], [all_stops[i] for i in indices]
        known = self._sequences.known(ids, stops)
        sampled, logprobs, at_fault = self._sampler.sample(logits, ids, stops, known)
        for index, seq_id, token in zip(indices, ids, sampled, strict=True):
            tokens[index] = None if seq_id in at_fault else token
        self._sampled += zip(ids, stops, sampled, strict=True)
        failed.update(at_fault)
        return logprobs

    def _prompt_logprobs(
        self, step: InFlight, logits: Logits, failed: dict[int, Exception]
    ) -> dict[int, TokenLogprobs]:
        """Return the log-probabilities of prompt tokens that follow positions with logits; what
        fails is noted for its sequence.
        """
        batch, found = step.batch, dict[int, TokenLogprobs]()
        if not batch.has_reported:
            return found
        counts = batch.num_reported
        for index in np.flatnonzero(counts).tolist():
            seq_id, count = batch.seq_ids[index], int(counts[index])
            if not self._knows(seq_id):
                continue
            begin = int(np.searchsorted(batch.host_logits, batch.logit_start_loc[index]))
            first = step.plan.slices[index].logits_from + 1
            (known,) = self._sequences.known([seq_id], [first + count])
            rows = logits[begin : begin + count]
            try:
                found[seq_id] = self._sampler.prompt_logprobs(seq_id, rows, known[first:])
            except Exception as error:
                failed[seq_id] = error
        return found

    def _knows(self, seq_id: int) -> bool:
        """Return True if the sequence is known; it may have ended since the step was launched."""
        return seq_id in self._sequences
