"""Log-probabilities that the device has computed in a step, by sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.run.in_flight import InFlight
from spaninfer_engine.step.sequences import Sequences


def sampled_logprobs(
    step: InFlight, tokens: Sequence[int | None], asked: Mapping[int, int]
) -> dict[int, LogprobAt]:
    """Return the log-probabilities of tokens that the device sampled, one or none per slice.

    `asked`: how many of the most likely tokens each sequence wants with them, by its id.
    """
    if asked.keys().isdisjoint(step.batch.seq_ids):
        return {}
    reported = step.launched.logprobs()
    assert reported is not None, "sequences of the step ask for log-probabilities"
    ids = step.batch.seq_ids
    slices = [i for i, id_ in enumerate(ids) if id_ in asked and tokens[i] is not None]
    rows = step.batch.logit_start_loc[1:][slices] - 1
    most = max((asked[ids[i]] for i in slices), default=0)
    found = TokenLogprobs(  # copies: the device writes there again
        np.array([tokens[i] for i in slices], np.int32),
        reported.chosen[rows],
        reported.ranks[rows],
        reported.top_ids[rows, :most],
        reported.top[rows, :most],
    )
    return {ids[i]: LogprobAt(found, number, asked[ids[i]]) for number, i in enumerate(slices)}


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
