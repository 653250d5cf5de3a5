"""Log-probabilities that the device has computed in a step, by sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from spaninfer_engine.request.logprobs import LogprobAt, StepLogprobs, TokenLogprobs
from spaninfer_engine.run.in_flight import InFlight
from spaninfer_engine.step.device import Logprobs
from spaninfer_engine.step.sequences import Sequences


def sampled_logprobs(
    step: InFlight, tokens: Sequence[int | None], asked: Mapping[int, int]
) -> dict[int, LogprobAt]:
    """Return the log-probabilities of tokens that the device sampled, one or none per slice.

    `asked`: how many of the most likely tokens each sequence wants with them, by its id.
    """
    if not asked:
        return {}
    batch, ids = step.batch, step.batch.seq_ids
    slices = [i for i, id_ in enumerate(ids) if id_ in asked and tokens[i] is not None]
    if not slices:
        return {}
    last = range(len(ids)) if batch.is_decode else (batch.logit_start_loc[1:] - 1).tolist()
    rows = tuple([last[i] for i in slices])
    reported = step.launched.logprobs(rows, max(asked.values()))
    found = StepLogprobs(partial(_arrays_of, [tokens[i] for i in slices], reported))
    return {ids[i]: LogprobAt(found, number, asked[ids[i]]) for number, i in enumerate(slices)}


def _arrays_of(tokens: Sequence[int | None], reported: Callable[[], Logprobs]) -> TokenLogprobs:
    """Return what is reported of tokens, all of which were sampled."""
    return TokenLogprobs(np.array(tokens, np.int32), *reported())


def prompt_logprobs(step: InFlight, sequences: Sequences, vocab: int) -> dict[int, TokenLogprobs]:
    """Return the log-probabilities of prompt tokens, of sequences that have not ended since."""
    batch, reported = step.batch, step.launched.prompt_logprobs()
    if reported is None:
        return {}
    counts, found = batch.num_reported, {}
    _, next_ids = batch.reported(sequences)
    stops = np.cumsum(counts)
    for index in np.flatnonzero(counts).tolist():
        seq_id, part = batch.seq_ids[index], slice(stops[index] - counts[index], stops[index])
        if seq_id not in sequences:
            continue
        asked = sequences.by_id[seq_id].sampling.prompt_logprobs
        assert asked is not None, "prompt rows are computed for those who ask"
        count = min(asked, vocab)
        found[seq_id] = TokenLogprobs(
            next_ids[part],
            reported.chosen[part],
            reported.ranks[part],
            reported.top_ids[part, :count],
            reported.top[part, :count],
        )
    return found
