"""Sequences that have entered a runner: their tokens, span tables and sampling parameters.

Each sequence has a row; all rows are one array, so that the inputs of a step are gathered with a
few index operations however many sequences it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.request.media import MediaRun, PromptMedia
from spaninfer_engine.step.plan import NewSequence, TableUpdate

NO_SECOND = np.int32(np.iinfo(np.int32).max)  # behind every position


class Sequences:
    """Rows of tokens [R, max_len + 1] and, per cache group, of span numbers [R M].

    The runner writes, devices read. Address space is reserved for sequences of `max_len`; the
    operating system gives memory as far as they grow. `num_rows` is the number of sequences to
    expect; more are taken in.
    """

    def __init__(self, num_groups: int, *, max_len: int, span_len: int, num_rows: int) -> None:
        max_spans = -(-max_len // span_len)
        self.span_len, self.max_len = span_len, max_len
        self.by_id: dict[int, NewSequence] = {}  # by sequence id
        self._row: dict[int, int] = {}  # by sequence id
        self._free = list(range(num_rows - 1, -1, -1))
        self.tokens = np.zeros((num_rows, max_len + 1), np.int32)
        self.tables = tuple(np.zeros((num_rows, max_spans), np.int32) for _ in range(num_groups))
        self.num_known = np.zeros(num_rows, np.int32)  # tokens
        self.second_from = np.full(num_rows, NO_SECOND)
        self.deltas = np.zeros(num_rows, np.int32)  # what positions are ahead of the token count
        self.deltas_from = np.zeros(num_rows, np.int32)  # the token from which on they are
        self.media: dict[int, tuple[PromptMedia, tuple[MediaRun, ...]]] = {}  # by sequence id

    def __len__(self) -> int:
        """Return how many sequences are known."""
        return len(self._row)

    def __contains__(self, seq_id: int) -> bool:
        """Return True if the sequence is known."""
        return seq_id in self._row

    def enter(self, sequence: NewSequence) -> None:
        """Take in a sequence and its prompt."""
        assert sequence.seq_id not in self._row
        if not self._free:
            self._double()
        row = self._row[sequence.seq_id] = self._free.pop()
        self.by_id[sequence.seq_id] = sequence
        self.tokens[row, : len(sequence.token_ids)] = sequence.token_ids
        self.num_known[row] = len(sequence.token_ids)
        second = sequence.second_from
        self.second_from[row] = NO_SECOND if second is None else second
        self.deltas[row] = self.deltas_from[row] = 0
        if sequence.media is not None:
            self.media[sequence.seq_id] = sequence.media, sequence.media.runs()
            self.deltas[row] = sequence.media.delta
            self.deltas_from[row] = sequence.media.delta_from()

    def put_texts(
        self, ids: Sequence[NDArray[np.int64]], second_from: Sequence[int | None]
    ) -> None:
        """Write whole texts into the first rows, in order, over those of the step before.

        For runners of encoders, whose texts are no sequences with ids: none may have entered.
        """
        assert not self._row, "texts take the rows of sequences"
        while len(ids) > len(self.tokens):
            self._double()
        lengths = [len(each) for each in ids]
        rows = np.repeat(np.arange(len(ids)), lengths)
        starts = np.cumsum(lengths) - lengths
        places = np.arange(len(rows)) - np.repeat(starts, lengths)
        self.tokens[rows, places] = np.concatenate(ids)
        known = (NO_SECOND if second is None else second for second in second_from)
        self.second_from[: len(ids)] = np.fromiter(known, np.int32, len(ids))

    def update_table(self, update: TableUpdate) -> None:
        """Write span numbers into a sequence's table."""
        table = self.tables[update.group][self._row[update.seq_id]]
        table[update.first : update.first + len(update.spans)] = update.spans

    def leave(self, seq_id: int) -> None:
        """Forget a sequence."""
        self._free.append(self._row.pop(seq_id))
        del self.by_id[seq_id]
        self.media.pop(seq_id, None)

    def row(self, seq_id: int) -> int:
        """Return the row of a sequence."""
        return self._row[seq_id]

    def rows(self, seq_ids: Sequence[int]) -> NDArray[np.int32]:
        """Return the rows of sequences."""
        row = self._row
        return np.array([row[seq_id] for seq_id in seq_ids], np.int32)

    def known(self, seq_ids: Sequence[int], stops: Sequence[int]) -> KnownTokens:
        """Return the first `stops[i]` tokens of every sequence."""
        return KnownTokens(self, seq_ids, stops)

    def write(
        self, seq_ids: Sequence[int], positions: Sequence[int], token_ids: Sequence[int | None]
    ) -> None:
        """Write the tokens that were sampled for positions, if one was; not for sequences that have
        left.
        """
        # One by one: as arrays, 256 of them take as long, and a single one 14 µs instead of 2.
        tokens, num_known = self.tokens, self.num_known
        for seq_id, position, token_id in zip(seq_ids, positions, token_ids, strict=True):
            row = self._row.get(seq_id)
            if row is not None and token_id is not None:
                tokens[row, position] = token_id
                num_known[row] = position + 1

    def _double(self) -> None:
        """Make room for as many sequences again; rare, because it copies what there is."""
        old = len(self.tokens)
        self.tokens = _taller(self.tokens)
        self.tables = tuple(_taller(table) for table in self.tables)
        self.num_known = np.concatenate([self.num_known, np.zeros_like(self.num_known)])
        self.second_from = np.concatenate([self.second_from, np.full(old, NO_SECOND)])
        self.deltas = np.concatenate([self.deltas, np.zeros_like(self.deltas)])
        self.deltas_from = np.concatenate([self.deltas_from, np.zeros_like(self.deltas_from)])
        self._free += range(2 * old - 1, old - 1, -1)


class KnownTokens(Sequence[NDArray[np.int32]]):
    """The tokens of some sequences: views, each made when it is looked at.

    A sampler looks at few: not at those of sequences that are sampled whatever came before.
    """

    __slots__ = ("_seq_ids", "_sequences", "_stops")

    def __init__(self, sequences: Sequences, seq_ids: Sequence[int], stops: Sequence[int]) -> None:
        self._sequences, self._seq_ids, self._stops = sequences, seq_ids, stops

    def __len__(self) -> int:
        return len(self._seq_ids)

    @overload
    def __getitem__(self, at: int) -> NDArray[np.int32]: ...

    @overload
    def __getitem__(self, at: slice) -> KnownTokens: ...

    def __getitem__(self, at: int | slice) -> NDArray[np.int32] | KnownTokens:
        """Return the tokens of one sequence, or those of some as here."""
        if isinstance(at, slice):
            return KnownTokens(self._sequences, self._seq_ids[at], self._stops[at])
        row = self._sequences.row(self._seq_ids[at])
        return self._sequences.tokens[row, : self._stops[at]]


def _taller(array: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the array with as many rows again."""
    taller = np.zeros((2 * len(array), array.shape[1]), np.int32)
    taller[: len(array)] = array
    return taller
