"""Inputs of a step as recorded scripts read them: addresses and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from spaninfer_kernels_cpu import (
    ITEMS,
    LOGITS,
    MAX_COUNTS,
    TOKENS,
    AttentionPlan,
    ExpertCounts,
    PlanKind,
    PlanMemory,
    PlanRows,
    SelectionPlan,
    StatePlan,
    num_segments,
    plan_selected,
    plan_selection,
    plan_states,
)

from spaninfer_engine.ops.step import AttentionMetadata, Step

MAX_GROUPS = MAX_ROPES = 16

# Numbers of words: token ids, positions, requests, places, rows with logits, and types of tokens,
# where they are asked for; then pairs per cache group, four of a tower's windows, and pairs per
# rotary embedding, and per count (of those that are plans: items, parts).
_TYPES = 5
_TABLES = _TYPES + 1
_WINDOWS = _TABLES + 2 * MAX_GROUPS
_ANGLES = _WINDOWS + 4
_PLANS = _ANGLES + 2 * MAX_ROPES


@dataclass(frozen=True, slots=True)
class _Plan:
    """The items of attention of one kind; see `plan`."""

    kind: PlanKind
    row_bytes: int
    in_windows: bool


@dataclass(frozen=True, slots=True)
class _Selection:
    """The items of an indexer's scores, for that many keys that a row reads at the most."""

    heads: int
    top_k: int


@dataclass(frozen=True, slots=True)
class _SelectedPlan:
    """The items of attention to selected keys, that many of each row; see `selected_plan`."""

    group: int
    top_k: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class _Places:
    """Buffers of values with the same number of rows: `rows` names the count of the step."""

    rows: int
    top_k: int


@dataclass(frozen=True, slots=True)
class _Runs:
    """The most experts that they can choose."""

    rows: int
    top_k: int
    experts: int


@dataclass(frozen=True, slots=True)
class _States:
    """The chains of pieces of a cache group whose spans are states."""

    group: int


_Cut: TypeAlias = _Plan | _Selection | _SelectedPlan | _Places | _Runs | _States


class Inputs:
    """The inputs of a step at fixed addresses: int64 words that hold addresses.

    Kernels get the address of a word. A step's arrays are copied to memory that stays: finding
    an array's address takes 3 µs, and a step of one token has ten of them. Others are kept alive
    until the next step's take over.
    """

    def __init__(self) -> None:
        self._words = np.zeros(_PLANS + 2 * MAX_COUNTS, np.int64)
        self._base: int = self._words.ctypes.data
        self._step: Step[Any] | None = None
        self._copies: dict[int, NDArray[Any]] = {}  # by word: rows for as many as there ever were
        self._tables: tuple[NDArray[np.int32], ...] = ()
        self._kept: list[NDArray[Any]] = []
        self._cuts: dict[_Cut, int] = {}  # what else counts: which count it is
        self._counts: list[int] = []
        self._has_types = False
        self._plans: dict[int, PlanMemory] = {}  # by count
        self.token_ids, self.position, self.request, self.places, self.logit_indices = (
            self._word(number) for number in range(_TYPES)
        )

    def types(self) -> int:
        """Return the word of the tokens' types, which are found from this step on."""
        self._has_types = True
        self._copy_types(self._metadata)
        return self._word(_TYPES)

    def table(self, group: int) -> tuple[int, int]:
        """Return the words of a cache group's span tables and of their width."""
        return self._word(_TABLES + 2 * group), self._word(_TABLES + 2 * group + 1)

    def windows(self) -> tuple[int, int, int, int]:
        """Return the words of windows' first rows, of how many each has (one), and of the window
        and the position in it of every row.
        """
        first, width, request, position = (self._word(_WINDOWS + which) for which in range(4))
        return first, width, request, position

    def angles(self, rope: int) -> tuple[int, int]:
        """Return the words of the cosines and the sines of a rotary embedding."""
        return self._word(_ANGLES + 2 * rope), self._word(_ANGLES + 2 * rope + 1)

    def plan(self, kind: PlanKind, row_bytes: int, *, in_windows: bool = False) -> AttentionPlan:
        """Return how attention of this kind is cut from now on.

        `row_bytes`: of the parts that one row leaves. `in_windows`: among the rows of a tower's
        windows.
        """
        count = self._count(_Plan(kind, row_bytes, in_windows))
        return AttentionPlan(count, *self._plan_words(count))

    def selection(self, heads: int, top_k: int) -> SelectionPlan:
        """Return how the scores of an indexer with that many heads are cut from now on."""
        count = self._count(_Selection(heads, top_k))
        return SelectionPlan(count, *self._plan_words(count))

    def selected_plan(self, group: int, top_k: int, row_bytes: int) -> AttentionPlan:
        """Return how attention to selected keys is cut from now on; see `plan`."""
        count = self._count(_SelectedPlan(group, top_k, row_bytes))
        return AttentionPlan(count, *self._plan_words(count))

    def states(self, group: int) -> StatePlan:
        """Return how operators on the states of a cache group are cut from now on."""
        count = self._count(_States(group))
        return StatePlan(count, *self._plan_words(count))

    def experts(self, top_k: int, experts: int, *, per_logit: bool) -> ExpertCounts:
        """Return how calls for experts are cut from now on, of rows that choose that many each."""
        rows = LOGITS if per_logit else TOKENS
        places = self._count(_Places(rows, top_k))
        return ExpertCounts(rows, places, self._count(_Runs(rows, top_k, experts)))

    def _count(self, cut: _Cut) -> int:
        """Return which of the step's counts a cut is; a new one is the next."""
        count = self._cuts.setdefault(cut, ITEMS + len(self._cuts))
        assert count < MAX_COUNTS
        return count

    def fill(self, step: Step[Any]) -> None:
        """Write the addresses of this step's arrays into the words."""
        metadata: AttentionMetadata[Any] = step.attention
        assert len(metadata.tables) <= MAX_GROUPS
        assert len(step.rotations) <= MAX_ROPES
        self._step, self._kept = step, []
        for number, array in enumerate(
            (
                *(step.token_ids, metadata.positions, metadata.token_rows),
                *(step.positions[0], step.logit_indices),
            )
        ):
            self._copy(number, array, np.int32)
        if self._has_types:
            self._copy_types(metadata)
        if metadata.tables is not self._tables:
            self._put_tables(metadata.tables)
        if not metadata.tables:  # no cache: keys lie where they were computed (`attention.ragged`)
            self._put(_TABLES, _first_rows(metadata))
            self._words[_TABLES + 1] = 1
        if metadata.windows is not None:
            self._put_windows(metadata.windows)
        for rope, rotation in enumerate(step.rotations):
            for which, part in enumerate(rotation):
                self._copy(_ANGLES + 2 * rope + which, part, np.float32)
        self._counts = [step.num_tokens, len(step.logit_indices)]

    def _copy_types(self, metadata: AttentionMetadata[Any]) -> None:
        self._copy(_TYPES, metadata.token_types(), np.int32)

    def _copy(self, number: int, rows: NDArray[Any], dtype: DTypeLike) -> None:
        """Copy rows to the memory of a word, which moves where there are more than ever, or rows of
        another size: a tower's.
        """
        size, copies = rows.shape[1:], self._copies.get(number)
        if copies is None or len(copies) < len(rows) or copies.shape[1:] != size:
            capacity = 1 << (len(rows) - 1).bit_length()
            copies = self._copies[number] = np.empty((capacity, *size), dtype)
            self._words[number] = copies.ctypes.data
        copies[: len(rows)] = rows

    def _put_tables(self, tables: tuple[NDArray[np.int32], ...]) -> None:
        """Write the addresses of span tables; they are others when there are more sequences."""
        self._tables = tables
        for group, table in enumerate(tables):
            word = _TABLES + 2 * group
            self._words[word], self._words[word + 1] = table.ctypes.data, table.shape[1]

    def _put_windows(self, windows: AttentionMetadata[Any]) -> None:
        self._put(_WINDOWS, _first_rows(windows))
        self._words[_WINDOWS + 1] = 1
        self._put(_WINDOWS + 2, windows.token_rows)
        self._put(_WINDOWS + 3, windows.positions)

    def counts(self) -> list[int]:
        """Return the counts of the step, after finding those that are still missing."""
        for cut, count in self._cuts.items():
            if len(self._counts) == count:
                self._counts.append(self._found(cut, count))
        return self._counts

    def _found(self, cut: _Cut, count: int) -> int:
        """Return a count of the step; of plans of attention, after making them."""
        match cut:
            case _Places(rows, top_k):
                return self._counts[rows] * top_k
            case _Runs(rows, top_k, experts):
                return num_segments(self._counts[rows], top_k, experts)
            case _Plan(kind, row_bytes, in_windows):
                if count not in self._plans:
                    self._plans[count] = PlanMemory(kind)
                memory, word = self._plans[count], _PLANS + 2 * count
                num_items, parts = memory.write(self._rows(in_windows=in_windows))
                self._words[word] = memory.address
                if parts:
                    self._put(word + 1, np.empty(parts * row_bytes, np.uint8))
                return num_items
            case _Selection(heads, top_k):
                metadata = self._metadata
                items, room = plan_selection(metadata.token_rows, metadata.positions, heads, top_k)
                return self._put_plan(count, items, room)
            case _SelectedPlan(group, top_k, row_bytes):
                items, parts = plan_selected(self._metadata.positions, group, top_k)
                return self._put_plan(count, items, np.empty(parts * row_bytes, np.uint8))
            case _States(group):
                pieces = self._pieces(group)
                begins = plan_states(pieces)
                self._put_plan(count, pieces, begins)
                return len(begins) - 1

    def _pieces(self, group: int) -> NDArray[np.int32]:
        """Return the pieces[P 4] of a group's slices, as kernels read them."""
        found = self._metadata.states
        assert found is not None, "a model with states has spans for them"
        rows = [
            (first, last, -1 if source is None else source, target)
            for first, last, source, target in found[group]
        ]
        return np.array(rows, np.int32).reshape(-1, 4)

    @property
    def _metadata(self) -> AttentionMetadata[Any]:
        assert self._step is not None
        metadata: AttentionMetadata[Any] = self._step.attention
        return metadata

    def _put_plan(self, count: int, items: NDArray[Any], memory: NDArray[Any]) -> int:
        """Write where the items of a plan and its memory are; return how many items there are."""
        self._put(_PLANS + 2 * count, items)
        self._put(_PLANS + 2 * count + 1, memory)
        return len(items)

    def _plan_words(self, count: int) -> tuple[int, int]:
        return self._word(_PLANS + 2 * count), self._word(_PLANS + 2 * count + 1)

    def _rows(self, *, in_windows: bool) -> PlanRows:
        """Return where the rows of the step are, as plans of attention read them."""
        assert self._step is not None
        metadata = self._step.attends_in(windows=in_windows)
        until = metadata.until
        if until is not None:
            until = np.ascontiguousarray(until, np.int32)
            self._kept.append(until)
        request, position = (_WINDOWS + 2, _WINDOWS + 3) if in_windows else (2, 1)
        return PlanRows(
            int(self._words[request]),
            int(self._words[position]),
            0 if until is None else until.ctypes.data,
            len(metadata.positions),
        )

    def _word(self, number: int) -> int:
        return self._base + 8 * number

    def _put(self, number: int, array: NDArray[Any]) -> None:
        self._words[number] = array.ctypes.data
        self._kept.append(array)


def _first_rows(metadata: AttentionMetadata[Any]) -> NDArray[np.int32]:
    """[N]: by table row, the row of the step in which a sequence begins."""
    batch = metadata.batch
    first = np.zeros(int(batch.table_rows.max()) + 1, np.int32)
    first[batch.table_rows] = batch.query_start_loc[:-1]
    return first
