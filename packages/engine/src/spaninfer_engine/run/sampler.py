"""From logits to tokens: what every request asked for, and the definitions that do it.

Rows arrive on the host in float32. Draws depend on a request's seed and the position alone, so a
request gets the same tokens alone and in any batch (spaninfer_op_reference.sample).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import RowSampling, process, sample

from spaninfer_engine.errors import NoToken
from spaninfer_engine.logprobs import TokenLogprobs
from spaninfer_engine.plan import Entry
from spaninfer_engine.request import SamplingParams, TokenLogprob
from spaninfer_engine.run.logprobs import report
from spaninfer_engine.run.masks import allowed_by

Logits = NDArray[np.float32]
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What stays the same about a request from its first token to its last."""

    sampling: SamplingParams
    seed: int
    prompt_len: int
    end_ids: NDArray[np.int64]
    bad_words: tuple[tuple[int, ...], ...]
    logit_bias: tuple[NDArray[np.int64], NDArray[np.float32]] | None

    @classmethod
    def of(cls, entry: Entry) -> _Wish:
        """Return the wish of a request that enters."""
        bias = entry.sampling.logit_bias
        return cls(
            sampling=entry.sampling,
            seed=entry.seed,
            prompt_len=len(entry.token_ids),
            end_ids=np.array(sorted(entry.end_ids), np.int64),
            bad_words=entry.banned,
            logit_bias=(
                np.array(list(bias), np.int64),
                np.array(list(bias.values()), np.float32),
            )
            if bias
            else None,
        )

    @property
    def is_plain(self) -> bool:
        """Is the likeliest token taken, whatever came before?"""
        wanted = self.sampling
        return (
            wanted.is_greedy
            and self.logit_bias is None
            and not self.bad_words
            and not (wanted.min_tokens or wanted.no_repeat_ngram)
            and not (wanted.presence_penalty or wanted.frequency_penalty)
            and wanted.repetition_penalty == 1.0
            and wanted.mask is None
        )

    def at(self, position: int, tokens: Ids, vocab: int) -> RowSampling:
        """Return how the token at a position is chosen, after tokens[position].

        Raises what a token mask raises.
        """
        wanted = self.sampling
        output_ids = tokens[self.prompt_len :]
        mask = wanted.mask
        too_early = position - self.prompt_len < wanted.min_tokens
        return RowSampling(
            seed=self.seed,
            position=position,
            temperature=wanted.temperature,
            top_k=wanted.top_k,
            typical_p=wanted.typical_p,
            top_p=wanted.top_p,
            min_p=wanted.min_p,
            repetition_penalty=wanted.repetition_penalty,
            presence_penalty=wanted.presence_penalty,
            frequency_penalty=wanted.frequency_penalty,
            no_repeat_ngram=wanted.no_repeat_ngram,
            logit_bias=self.logit_bias,
            allowed=None if mask is None else allowed_by(mask, output_ids, vocab),
            banned=self.end_ids if too_early and len(self.end_ids) else None,
            bad_words=self.bad_words,
            prompt_ids=tokens[: self.prompt_len],
            output_ids=output_ids,
        )


_LIKELIEST = RowSampling(temperature=0.0)
"""What plain greedy requests share: making one takes 6 µs, for 256 requests half a step."""


Sample = Callable[
    [Logits, Sequence[RowSampling]], tuple[NDArray[np.integer], Mapping[int, Exception]]
]
"""Returns a token per row of logits[R V], and an error for each row that has none."""


class Sampler:
    """Draws tokens for the requests that it was told about, by the definition or as fast a way."""

    def __init__(self, faster: Sample | None = None) -> None:
        self._sample = faster or sample
        self._wishes: dict[int, _Wish] = {}
        self._plain: set[int] = set()  # requests that take the likeliest token

    def enter(self, entry: Entry) -> None:
        """Remember how a request wants its tokens."""
        wish = self._wishes[entry.request_id] = _Wish.of(entry)
        if wish.is_plain:
            self._plain.add(entry.request_id)

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        del self._wishes[request_id]
        self._plain.discard(request_id)

    def draw(
        self,
        logits: Logits,
        requests: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[Ids],
    ) -> tuple[list[int], dict[int, TokenLogprob], dict[int, Exception]]:
        """Return a token per row of logits[R V], log-probabilities and failures by request id."""
        rows: list[RowSampling] = []
        at_fault: dict[int, Exception] = {}
        for request_id, position, known in zip(requests, positions, tokens, strict=True):
            row = _LIKELIEST
            if request_id not in self._plain:
                try:
                    row = self._wishes[request_id].at(position, known, logits.shape[1])
                except Exception as error:  # of a token mask: the sequence fails alone
                    at_fault[len(rows)] = error
            rows.append(row)
        chosen, without = self._sample(logits, rows)
        failed = {row: NoToken(str(error)) for row, error in without.items()} | at_fault
        logprobs = {}
        for index, request_id in enumerate(requests):
            wanted = self._wishes[request_id].sampling
            if wanted.logprobs is None or index in failed:
                continue
            about = logits[index]
            if wanted.processed_logprobs:
                about = process(about, rows[index])
            [logprobs[request_id]] = report(about[None], chosen[index : index + 1], wanted.logprobs)
        failures: dict[int, Exception] = {requests[row]: error for row, error in failed.items()}
        return chosen.tolist(), logprobs, failures

    def prompt_logprobs(self, request_id: int, logits: Logits, next_ids: Ids) -> TokenLogprobs:
        """Return the log-probability of next_ids[i] under logits[i] of logits[rows V]."""
        count = self._wishes[request_id].sampling.prompt_logprobs
        assert count is not None, "prompt rows are computed for those who ask"
        return report(logits, next_ids, count)
