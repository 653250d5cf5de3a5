"""Token masks of steps: begun once the tokens that they depend on are known, and awaited before the
next step is launched. The forward pass of a step runs meanwhile, for it was launched without them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.request import MaskJob, Matcher
from spaninfer_engine.run.in_flight import InFlight, MasksInFlight
from spaninfer_engine.run.masks import begin_masks, mask_of
from spaninfer_engine.step.batch import Batch
from spaninfer_engine.step.device import Bytes, TokenMasks
from spaninfer_engine.step.plan import NewSequence
from spaninfer_engine.step.sequences import Sequences


class StepMasks:
    """The token masks of sequences that the device samples, given to one step after the other.

    Those that have `failed` wait for no tokens, and may take any.
    """

    def __init__(self, sequences: Sequences, failed: set[int], vocab: int) -> None:
        self._sequences, self._failed, self._vocab = sequences, failed, vocab
        self._matchers: dict[int, tuple[Matcher, int]] = {}  # and prompt_len

    @property
    def seq_ids(self) -> Collection[int]:
        """The sequences that have masks."""
        return self._matchers.keys()

    def enter(self, sequence: NewSequence) -> None:
        """Remember what masks the tokens of a sequence, if anything does."""
        if (matcher := mask_of(sequence, self._vocab)) is not None:
            self._matchers[sequence.seq_id] = matcher, len(sequence.token_ids)

    def leave(self, seq_id: int) -> None:
        """Forget a sequence."""
        self._matchers.pop(seq_id, None)

    def begin(self, step: InFlight) -> None:
        """Begin to mask a step, unless that was done, or tokens are unknown that it depends on.

        The step is sampled at once, or by `finish` where other threads compute masks.
        """
        if not step.awaits_masks or step.masks is not None:
            return
        slices = np.flatnonzero(step.batch.masked)
        if self._lacks_tokens(step.batch, slices):
            return
        bits = step.launched.mask_bits(len(slices), self._vocab)
        jobs = self._jobs(step.batch, slices, bits)
        filled = begin_masks(jobs, bits)
        if callable(filled):
            step.masks = MasksInFlight(slices, bits, jobs, filled)
        else:
            _sample(step, slices, bits, zip(jobs, filled, strict=True))

    def finish(self, step: InFlight) -> None:
        """Wait for masks that other threads have begun to compute, and have the step sampled."""
        if (masks := step.masks) is not None:
            step.masks = None
            found = zip(masks.jobs, masks.wait(), strict=True)
            _sample(step, masks.slices, masks.bits, found)

    def _lacks_tokens(self, batch: Batch, slices: NDArray[np.intp]) -> bool:
        """Return True while tokens that the masks of slices depend on are unknown."""
        late = self._sequences.num_known[batch.table_rows[slices]] < batch.stops[slices]
        waiting = (batch.seq_ids[index] for index in slices[late].tolist())
        return not self._failed.issuperset(waiting)

    def _jobs(self, batch: Batch, slices: NDArray[np.intp], bits: Bytes) -> list[MaskJob]:
        """Return what fills bits[slices]; those of failed sequences are filled here."""
        jobs = list[MaskJob]()
        rows, stops = batch.table_rows[slices].tolist(), batch.stops[slices].tolist()
        for place, (index, row, stop) in enumerate(zip(slices.tolist(), rows, stops, strict=True)):
            seq_id = batch.seq_ids[index]
            if seq_id in self._failed:
                bits[place] = 0xFF
                continue
            matcher, prompt_len = self._matchers[seq_id]
            known = self._sequences.tokens[row, prompt_len:stop]
            jobs.append(MaskJob(matcher, known, place))
        return jobs


def _sample(
    step: InFlight,
    slices: NDArray[np.intp],
    bits: Bytes,
    found: Iterable[tuple[MaskJob, Bytes | Exception]],
) -> None:
    """Have a step sampled with what was found as its masks."""
    fixed = dict[int, Bytes]()
    for job, filled in found:
        if isinstance(filled, Exception):  # the sequence fails alone
            step.mask_errors[int(slices[job.row])] = filled
        elif not filled.flags.writeable:
            fixed[job.row] = filled
    step.launched.sample(TokenMasks(slices.astype(np.int32), bits, fixed))
    step.awaits_masks = False
