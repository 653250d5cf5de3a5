"""One step as columns: an entry per slice, built once from the plan and read by every device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.media import runs_within
from spaninfer_engine.request.request import MAX_LOGPROBS
from spaninfer_engine.step.plan import Slice
from spaninfer_engine.step.sequences import Sequences

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]

_NO_LOGITS: Ints = np.zeros(0, np.int32)


class Run(NamedTuple):
    """Tokens [first, last) of a step: positions [start, stop) of the sequence in a table row."""

    first: int
    last: int
    row: int
    start: int
    stop: int


class MediaRows(NamedTuple):
    """Tokens [first, last) of a step whose embeddings are rows of an encoding, from `row` on."""

    slice: int
    first: int
    last: int
    digest: bytes
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """R slices with T tokens, W of which get logits.

    Slices of one token that lead the batch are decodes; logits are computed for the last positions
    of each slice, or for its first (`logits_first`). All integers are int32.
    """

    seq_ids: tuple[int, ...]
    table_rows: Ints  # [R] row of the sequence in `Sequences`
    starts: Ints  # [R] first position
    stops: Ints  # [R] position behind the last
    rope_seq_lens: Ints  # [R] lengths of rotary frequencies, where these depend on one
    query_start_loc: Ints  # [R + 1] where the tokens of each slice begin
    logit_start_loc: Ints  # [R + 1] where the logits of each slice begin
    samples: Bools  # [R] is a token sampled from the slice's last logits?
    samples_on_device: Bools  # [R] does the device sample it?
    masked: Bools  # [R] does a token mask limit what the device samples?
    num_decodes: int
    host_logits: Ints  # [N] the logits that the host asks for, ascending
    # How many are True in the arrays: a number is read in 30 ns, an array answers in 500 to 2000.
    num_samples: int
    num_device_samples: int
    num_masked: int
    device_reports: bool = False  # does the device report on prompts?
    logits_first: bool = False  # is the one logit position of each slice its first?
    media: tuple[MediaRows, ...] = ()

    @property
    def num_slices(self) -> int:
        """Number of slices (R)."""
        return len(self.seq_ids)

    @property
    def num_tokens(self) -> int:
        """Number of tokens (T)."""
        return int(self.query_start_loc[-1])

    @property
    def num_logits(self) -> int:
        """Number of logit positions (W)."""
        return int(self.logit_start_loc[-1])

    @property
    def max_seq_len(self) -> int:
        """The largest of `stops`."""
        return int(max(self.stops.tolist()))

    @property
    def is_decode(self) -> bool:
        """True if every slice has one token, with logits."""
        return self.num_decodes == self.num_slices == self.num_logits

    @property
    def has_single_tokens(self) -> bool:
        """True if every slice has one token: columns of slices are columns of tokens then."""
        return self.num_decodes == len(self.seq_ids)

    def positions(self) -> Ints:
        """Return the position of every token in its sequence, [T]."""
        return self.starts if self.has_single_tokens else _ranges(self.starts, self.query_start_loc)

    def until(self, sequences: Sequences) -> Ints | None:
        """Return the exclusive end of each token's attention range, [T]; None if all are causal.

        A run of media whose tokens see each other lies in one slice.
        """
        if not self.media:
            return None
        together = [
            each
            for each in self.media
            if sequences.media[self.seq_ids[each.slice]][0].bidirectional
        ]
        if not together:
            return None
        until = self.positions() + 1
        for each in together:
            until[each.first : each.last] = until[each.last - 1]
        return until

    def places(self, sequences: Sequences, num_axes: int) -> Ints:
        """Return what rotary embeddings see of every token, [axes T]: its position, or where its
        prompt has media, what these say.
        """
        positions = self.positions()
        if sequences.media.keys().isdisjoint(self.seq_ids):
            shape = num_axes, len(positions)
            return positions[None] if num_axes == 1 else np.broadcast_to(positions, shape)
        places = np.tile(positions + sequences.deltas[self.token_rows()], (num_axes, 1))
        for seq_id, first, start, stop in zip(
            self.seq_ids, self.query_start_loc, self.starts, self.stops, strict=False
        ):
            media, _ = sequences.media.get(seq_id, (None, ()))
            if media is None or media.positions is None:
                continue
            known = media.positions[:, start:stop]  # behind the prompt there are none
            places[:, first : first + known.shape[1]] = known
        return places

    def token_rows(self) -> Ints:
        """Return the table row of every token, [T]."""
        return self.per_token(self.table_rows)

    def per_token(self, column: Ints) -> Ints:
        """Repeat a column [R] for every token, [T]."""
        if self.has_single_tokens:
            return column
        loc = self.query_start_loc  # not starts and stops: slices that pad have a token, and none
        return np.repeat(column, loc[1:] - loc[:-1])

    def logit_indices(self) -> Ints:
        """Return the tokens that get logits, [W]."""
        if self.is_decode or self.logits_first:
            return self.query_start_loc[:-1]
        loc = self.logit_start_loc
        return _ranges(self.query_start_loc[1:] - (loc[1:] - loc[:-1]), loc)

    @property
    def num_reported(self) -> Ints:
        """Positions of each slice [R], but for the sampled one, that get logits: log-probabilities
        of the tokens that follow them in the prompt were requested.
        """
        counts: Ints = np.diff(self.logit_start_loc) - self.samples
        return counts

    @property
    def has_reported(self) -> bool:
        """True if some slice has such positions."""
        return self.num_logits > self.num_samples

    def reported(self, sequences: Sequences) -> tuple[Ints, Ints]:
        """Return the logits [N] of those positions, and the tokens that follow them."""
        counts = self.num_reported
        loc = _cumulated(counts)
        positions = _ranges(self.stops + 1 - self.samples - counts, loc)
        next_ids: Ints = sequences.tokens[np.repeat(self.table_rows, counts), positions]
        return _ranges(self.logit_start_loc[:-1], loc), next_ids

    def most_reported(self, sequences: Sequences) -> int:
        """Return how many most likely tokens those slices ask for, at the most.

        A sequence that is not known, of a step whose memory is measured, asks for all.
        """
        slices = np.flatnonzero(self.num_reported).tolist()
        asking = [sequences.by_id.get(self.seq_ids[index]) for index in slices]
        counts = [MAX_LOGPROBS if x is None else x.sampling.prompt_logprobs or 0 for x in asking]
        return max(counts, default=0)

    def runs(self, rows: Sequence[int] | None = None, *, first: int = 0) -> tuple[Run, ...]:
        """Return the slices from number `first` on; `rows` stand in for the table rows."""
        loc = self.query_start_loc[first:].tolist()
        rows = self.table_rows.tolist() if rows is None else rows
        parts = (rows[first:], self.starts[first:].tolist(), self.stops[first:].tolist())
        return tuple(map(Run, loc[:-1], loc[1:], *parts))


def build_batch(
    slices: Sequence[Slice],
    sequences: Sequences,
    on_host: Collection[int] = (),
    masked: Collection[int] = (),
    *,
    device_reports: bool = False,
) -> Batch:
    """Return the batch of a plan's slices.

    `on_host` are sequences whose tokens the host samples, `masked` those with token masks; with
    `device_reports` the host asks for no logits of prompts.
    """
    ids, starts, stops, logits_from, samples, rope_seq_lens = zip(*slices, strict=True)
    begin, end = np.array(starts, np.int32), np.array(stops, np.int32)
    sampled = np.array(samples, np.bool_)
    by_host = with_mask = nowhere = np.zeros(len(ids), np.bool_)
    by_device = sampled
    if on_host:
        by_host = sampled & _among(on_host, ids)
        by_device = sampled & ~by_host
    if masked:
        with_mask = by_device & _among(masked, ids)
    num_samples = sum(samples)
    # Numbers of Python: decodes alone are found in 1 µs, where cumulated sums and ranges of arrays
    # took 30 (8 slices, a core of an EPYC, 2026-11-23), and a prompt's in 5.
    num_decodes, query_start_loc = len(ids), np.arange(len(ids) + 1, dtype=np.int32)
    if sum(stops) - sum(starts) > len(ids):
        lengths = list(map(sub, stops, starts))
        num_decodes = next(at for at, length in enumerate(lengths) if length > 1)
        query_start_loc = _begins(lengths)
    logit_start_loc = query_start_loc
    if not num_decodes == len(ids) == sum(stops) - sum(logits_from):
        logit_start_loc = _begins(map(sub, stops, logits_from))
    host_logits = _NO_LOGITS
    if not device_reports:
        host_logits = _all_but(by_device, logit_start_loc)
    elif on_host:
        host_logits = logit_start_loc[1:][by_host] - 1
    return Batch(
        seq_ids=ids,
        table_rows=sequences.rows(ids),
        starts=begin,
        stops=end,
        rope_seq_lens=np.array(rope_seq_lens, np.int32),
        query_start_loc=query_start_loc,
        logit_start_loc=logit_start_loc,
        samples=sampled,
        samples_on_device=by_device,
        masked=with_mask,
        num_decodes=num_decodes,
        host_logits=host_logits,
        num_samples=num_samples,
        num_device_samples=num_samples if by_host is nowhere else int(np.count_nonzero(by_device)),
        num_masked=0 if with_mask is nowhere else int(np.count_nonzero(with_mask)),
        device_reports=device_reports,
        media=_media_rows(slices, sequences, query_start_loc) if sequences.media else (),
    )


def _among(chosen: Collection[int], seq_ids: Sequence[int]) -> Bools:
    """Return which of the sequences are chosen, [R]."""
    return np.fromiter(map(chosen.__contains__, seq_ids), np.bool_, len(seq_ids))


def _media_rows(
    slices: Sequence[Slice], sequences: Sequences, query_start_loc: Ints
) -> tuple[MediaRows, ...]:
    """Return the tokens of the slices that stand for media."""
    found = []
    for number, part in enumerate(slices):
        if part.seq_id not in sequences.media:
            continue
        _, runs = sequences.media[part.seq_id]
        ahead = int(query_start_loc[number]) - part.start
        for run in runs_within(runs, part.start, part.stop):
            rows = MediaRows(number, run.start + ahead, run.stop + ahead, run.digest, run.row)
            found.append(rows)
    return tuple(found)


def cut_batch(lengths: Ints, token: Literal["first", "last"] | None = None) -> Batch:
    """Return the batch of rows that are no tokens of sequences, cut into runs of these lengths.

    `token` of each run is a logit position: its hidden state is the vector of a text.
    """
    count = len(lengths)
    numbers, nothing = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    return Batch(
        seq_ids=tuple(range(count)),
        table_rows=numbers,
        starts=nothing,
        stops=lengths.astype(np.int32),
        rope_seq_lens=nothing,
        query_start_loc=_cumulated(lengths),
        logit_start_loc=np.arange(count + 1, dtype=np.int32) * (token is not None),
        samples=np.zeros(count, np.bool_),
        samples_on_device=np.zeros(count, np.bool_),
        masked=np.zeros(count, np.bool_),
        num_decodes=0,
        host_logits=_NO_LOGITS,
        num_samples=0,
        num_device_samples=0,
        num_masked=0,
        logits_first=token == "first",
    )


def _begins(counts: Iterable[int]) -> Ints:
    """Return the exclusive prefix sums of counts, with the total appended."""
    return np.array([0, *accumulate(counts)], np.int32)


def _cumulated(counts: Ints) -> Ints:
    """Return the same for an array."""
    sums = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=sums[1:])
    return sums


def _ranges(starts: Ints, loc: Ints) -> Ints:
    """Return the concatenation of ranges that begin at starts[i] and have loc[i + 1] - loc[i]."""
    result: Ints = np.arange(loc[-1], dtype=np.int32)
    result += np.repeat(starts - loc[:-1], loc[1:] - loc[:-1])
    return result


def _all_but(by_device: Bools, logit_start_loc: Ints) -> Ints:
    """Return all logits but the last ones of slices that the device samples."""
    logits: Ints = np.arange(logit_start_loc[-1], dtype=np.int32)
    return np.delete(logits, logit_start_loc[1:][by_device] - 1) if by_device.any() else logits
