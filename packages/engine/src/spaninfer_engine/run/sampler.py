"""The host sampler: sampling parameters of each sequence, applied to its logits.

Rows arrive on the host in float32. Random numbers depend only on a request's seed, the position and
the token id, so a request gets the same tokens alone and in any batch
(spaninfer_op_reference.sample).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import GREEDY, RowSampling, process, sample
from spaninfer_op_reference import NoToken as NoTokenInRow

from spaninfer_engine.errors import NoToken
from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.request import MaskJob, Matcher, SamplingParams
from spaninfer_engine.run.logprobs import token_logprobs
from spaninfer_engine.run.masks import allowed_tokens, mask_of
from spaninfer_engine.step.plan import NewSequence

Logits = NDArray[np.float32]
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _SamplingState:
    """The sampling state of a sequence: what stays the same from its first token to its last."""

    sampling: SamplingParams
    seed: int
    prompt_len: int
    end_ids: NDArray[np.int64]
    bad_words: tuple[tuple[int, ...], ...]
    logit_bias: tuple[NDArray[np.int64], NDArray[np.float32]] | None

    @classmethod
    def of(cls, sequence: NewSequence) -> _SamplingState:
        """Return the state of a new sequence."""
        bias = sequence.sampling.logit_bias
        return cls(
            sampling=sequence.sampling,
            seed=sequence.seed,
            prompt_len=len(sequence.token_ids),
            end_ids=np.array(sorted(sequence.early_end_ids), np.int64),
            bad_words=sequence.banned,
            logit_bias=(
                np.array(list(bias), np.int64),
                np.array(list(bias.values()), np.float32),
            )
            if bias
            else None,
        )

    @property
    def is_plain(self) -> bool:
        """True if the most likely token is taken, whatever came before."""
        params = self.sampling
        return (
            params.is_greedy
            and self.logit_bias is None
            and not self.bad_words
            and not (params.min_tokens or params.no_repeat_ngram)
            and not (params.presence_penalty or params.frequency_penalty)
            and params.repetition_penalty == 1.0
        )

    def at(self, position: int, tokens: Ids) -> RowSampling:
        """Return how the token at a position is chosen, after tokens[position]."""
        params = self.sampling
        output_ids = tokens[self.prompt_len :]
        too_early = position - self.prompt_len < params.min_tokens
        return RowSampling(
            seed=self.seed,
            position=position,
            temperature=params.temperature,
            top_k=params.top_k,
            typical_p=params.typical_p,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            no_repeat_ngram=params.no_repeat_ngram,
            logit_bias=self.logit_bias,
            banned=self.end_ids if too_early and len(self.end_ids) else None,
            bad_words=self.bad_words,
            prompt_ids=tokens[: self.prompt_len],
            output_ids=output_ids,
        )


Sample = Callable[
    [Logits, Sequence[RowSampling]], tuple[NDArray[np.integer], Mapping[int, Exception]]
]
"""Returns a token per row of logits[R V], and an error for each row that has none."""


class Report(Protocol):
    """Computes log-probabilities: run.logprobs.token_logprobs, or an equal, faster way."""

    def __call__(
        self,
        logits: Logits,
        ids: NDArray[np.integer],
        count: int,
        temperatures: Logits | None = None,
    ) -> TokenLogprobs:
        """Return those of ids[R] under logits[R V], with the `count` most likely; under logits over
        temperatures[R] where these are given.
        """
        ...


@dataclass(frozen=True, slots=True)
class _SampledRows:
    """The rows of a step behind their sampling: logits[R V], where masks have left their -inf, and
    what was chosen of them.
    """

    logits: Logits
    raw: Mapping[int, Logits]  # by row: the model's own, of those with masks that are reported on
    sampling: Sequence[RowSampling]
    chosen: NDArray[np.integer]

    def reported(self, asking: Mapping[int, SamplingParams]) -> tuple[Logits, Logits]:
        """Return the logits[N V] that the log-probabilities of some rows are of, and what these
        logits are divided by, temperatures[N].
        """
        rows, temperatures = list(asking), np.ones(len(asking), np.float32)
        others: dict[int, Logits] = {}  # than those that were sampled from, by place
        for at, (row, params) in enumerate(asking.items()):
            sampling = self.sampling[row]
            if not params.processed_logprobs:
                if row in self.raw:
                    others[at] = self.raw[row]
            elif not sampling.is_plain:
                others[at] = process(self.logits[row], sampling)
            elif not sampling.is_greedy:
                temperatures[at] = sampling.temperature
        is_whole = len(rows) == len(self.logits) and not others
        logits = self.logits if is_whole else self.logits[rows]
        for at, other in others.items():
            logits[at] = other
        return logits, temperatures


class Sampler:
    """Samples tokens for the sequences that entered, by the definition or an equal, faster way."""

    def __init__(
        self, vocab: int, faster: Sample | None = None, logprobs: Report | None = None
    ) -> None:
        self._vocab, self._sample = vocab, faster or sample
        self._report = logprobs or token_logprobs
        self._states: dict[int, _SamplingState] = {}
        self._plain: set[int] = set()  # sequences that take the most likely token
        self._masks: dict[int, Matcher] = {}
        self._reported: set[int] = set()  # sequences with log-probabilities

    def enter(self, sequence: NewSequence) -> None:
        """Remember the sampling parameters of a sequence."""
        state = self._states[sequence.seq_id] = _SamplingState.of(sequence)
        if state.is_plain:
            self._plain.add(sequence.seq_id)
        if (mask := mask_of(sequence, self._vocab)) is not None:
            self._masks[sequence.seq_id] = mask
        if sequence.sampling.logprobs is not None:
            self._reported.add(sequence.seq_id)

    def leave(self, seq_id: int) -> None:
        """Forget a sequence."""
        del self._states[seq_id]
        self._plain.discard(seq_id)
        self._masks.pop(seq_id, None)
        self._reported.discard(seq_id)

    def sample(
        self,
        logits: Logits,
        seq_ids: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[Ids],
    ) -> tuple[list[int], dict[int, LogprobAt], dict[int, Exception]]:
        """Return a token per row of logits[R V], log-probabilities and failures by sequence id.

        Where a sequence has a token mask, -inf is written into its row.
        """
        plain, states = self._plain, self._states
        rows = [
            GREEDY if seq_id in plain else states[seq_id].at(position, tokens[index])
            for index, (seq_id, position) in enumerate(zip(seq_ids, positions, strict=True))
        ]
        raw, at_fault = self._mask(logits, seq_ids, tokens)
        try:
            chosen, without = self._sample(logits, rows)
        except Exception:  # of one row, or of the sampler
            chosen, without = self._sample_alone(logits, rows)
        failed = {row: _no_token(error) for row, error in without.items()} | at_fault
        sampled = _SampledRows(logits, raw, rows, chosen)
        logprobs = self._logprobs(sampled, seq_ids, failed)
        failures: dict[int, Exception] = {seq_ids[row]: error for row, error in failed.items()}
        return chosen.tolist(), logprobs, failures

    def _sample_alone(
        self, logits: Logits, rows: Sequence[RowSampling]
    ) -> tuple[NDArray[np.integer], dict[int, Exception]]:
        """Sample row by row, and return the errors of those that fail; raises where all of several
        do: then the sampler is at fault.
        """
        chosen, errors = np.zeros(len(rows), np.int64), dict[int, Exception]()
        for row, sampling in enumerate(rows):
            try:
                token_ids, without = self._sample(logits[row : row + 1], [sampling])
                chosen[row] = token_ids[0]
                if without:
                    errors[row] = without[0]
            except Exception as error:  # the sequence fails alone
                errors[row] = error
        _raise_if_common(errors, len(rows))
        return chosen, errors

    def _mask(
        self, logits: Logits, seq_ids: Sequence[int], tokens: Sequence[Ids]
    ) -> tuple[dict[int, Logits], dict[int, Exception]]:
        """Mask the logits of sequences that have masks, before all else: -inf stays -inf.

        Return the model's own logits of those that ask for log-probabilities, and errors, by row.
        """
        masked = [index for index, seq_id in enumerate(seq_ids) if seq_id in self._masks]
        if not masked:
            return {}, {}
        states = [self._states[seq_ids[index]] for index in masked]
        jobs = [
            MaskJob(self._masks[seq_ids[index]], tokens[index][state.prompt_len :], row)
            for row, (index, state) in enumerate(zip(masked, states, strict=True))
        ]
        allowed, failed = allowed_tokens(jobs, self._vocab)
        errors = {masked[row]: error for row, error in failed.items()}
        raw = {
            index: logits[index].copy()
            for index, state in zip(masked, states, strict=True)
            if state.sampling.logprobs is not None and index not in errors
        }
        banned = ~allowed
        if len(masked) == len(logits):
            np.copyto(logits, -np.inf, where=banned)
        else:
            for row, index in enumerate(masked):
                np.copyto(logits[index], -np.inf, where=banned[row])
        return raw, errors

    def _logprobs(
        self, sampled: _SampledRows, seq_ids: Sequence[int], failed: dict[int, Exception]
    ) -> dict[int, LogprobAt]:
        """Return the log-probabilities of chosen tokens, by sequence id, where they are requested.

        All rows are reported on at once, with as many most likely tokens as any of them asks for;
        where that fails one by one, and those that fail alone are added to `failed`.
        """
        asking = self._asking(seq_ids, failed)
        if not asking:
            return {}
        try:
            found = self._report_on(sampled, asking)
        except Exception:  # of one row, or of the report
            found, errors = self._report_alone(sampled, asking)
            failed.update(errors)
        return {seq_ids[row]: logprob for row, logprob in found.items()}

    def _asking(
        self, seq_ids: Sequence[int], failed: Mapping[int, Exception]
    ) -> dict[int, SamplingParams]:
        """Return the sampling parameters of rows that want log-probabilities and have a token."""
        if not self._reported:
            return {}
        return {
            row: self._states[seq_id].sampling
            for row, seq_id in enumerate(seq_ids)
            if seq_id in self._reported and row not in failed
        }

    def _report_on(
        self, sampled: _SampledRows, asking: Mapping[int, SamplingParams]
    ) -> dict[int, LogprobAt]:
        """Return the log-probabilities of some rows, by row."""
        rows, counts = list(asking), [params.logprobs or 0 for params in asking.values()]
        logits, temperatures = sampled.reported(asking)
        found = self._report(logits, sampled.chosen[rows], max(counts), temperatures)
        return {
            row: LogprobAt(found, at, count)
            for at, (row, count) in enumerate(zip(rows, counts, strict=True))
        }

    def _report_alone(
        self, sampled: _SampledRows, asking: Mapping[int, SamplingParams]
    ) -> tuple[dict[int, LogprobAt], dict[int, Exception]]:
        """Report row by row, and return the errors of those that fail; raises where all of several
        do: then the report is at fault.
        """
        found, errors = dict[int, LogprobAt](), dict[int, Exception]()
        for row, params in asking.items():
            try:
                found |= self._report_on(sampled, {row: params})
            except Exception as error:  # the sequence fails alone
                errors[row] = error
        _raise_if_common(errors, len(asking))
        return found, errors

    def prompt_logprobs(self, seq_id: int, logits: Logits, next_ids: Ids) -> TokenLogprobs:
        """Return the log-probability of next_ids[i] under logits[i] of logits[rows V]."""
        count = self._states[seq_id].sampling.prompt_logprobs
        assert count is not None, "prompt rows are computed for those who ask"
        return self._report(logits, next_ids, count)


def _no_token(error: Exception) -> Exception:
    """Return an error of a row as the engine's, where it is one of the definition's."""
    return NoToken(str(error)) if isinstance(error, NoTokenInRow) else error


def _raise_if_common(errors: Mapping[int, Exception], num_rows: int) -> None:
    """Raise where every one of several rows fails: what they share is at fault."""
    if len(errors) == num_rows > 1:
        raise next(iter(errors.values()))
