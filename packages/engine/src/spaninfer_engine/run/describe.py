"""From slices to the columns of a step on a device, and what the host does with its logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.device import Columns, Launch
from spaninfer_engine.ops.step import Rotation, Run
from spaninfer_engine.plan import Slice

Ints = NDArray[np.int32]
Rotations = tuple[Rotation[NDArray[np.float32]] | None, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the host does for slice `index`, in rows of the logits that come for it.

    Rows [first, last) are about the tokens of the prompt that follow; with `draws`, the token is
    drawn from row `last`.
    """

    index: int
    first: int
    last: int
    draws: bool


@dataclass(frozen=True, slots=True)
class Described:
    """Sizes of a step whose columns are filled, and who draws from which of its rows."""

    request_ids: tuple[int, ...]  # by slice, as are the next three
    stops: tuple[int, ...]
    draws: tuple[bool, ...]
    draws_from: Ints  # the wanted row that its token is drawn from
    slices: int
    rows: int
    wanted: int
    num_decodes: int
    prefills: tuple[Run, ...]
    asked: tuple[Asked, ...]
    logits: tuple[int, ...]  # the wanted rows that `asked` counts

    def launch(
        self, rotations: Rotations, *, revises: bool = False, reports: bool = False
    ) -> Launch:
        """Return what the device is told besides the columns."""
        return Launch(
            slices=self.slices,
            rows=self.rows,
            wanted=self.wanted,
            max_len=max(self.stops),
            num_decodes=self.num_decodes,
            prefills=self.prefills,
            rotations=rotations,
            logits=self.logits,
            revises=revises,
            reports=reports,
        )


def describe(
    slices: Sequence[Slice], rows: Sequence[int], columns: Columns, host_draws: Mapping[int, int]
) -> Described:
    """Fill the columns of a step of these slices, whose requests are remembered in `rows`.

    `host_draws` holds, by request id, the position below which the host draws its tokens.
    """
    ids, starts, stops, logits_from, draws, _ = zip(*slices, strict=True)
    count = len(ids)
    columns.rows[:count] = rows
    columns.starts[:count] = starts
    columns.stops[:count] = stops
    columns.draws[:count] = np.where(draws, stops, -1)
    lengths = columns.stops[:count] - columns.starts[:count]
    num_wanted = columns.stops[:count] - np.array(logits_from, np.int32)
    _running_sum(lengths, columns.bounds)
    _running_sum(num_wanted, columns.wanted)
    num_decodes = count if lengths.max() == 1 else int((lengths > 1).argmax())
    asked: tuple[Asked, ...] = ()
    logits: tuple[int, ...] = ()
    if host_draws or num_wanted.max() > 1 or (num_wanted > draws).any():
        by_host = [
            drawn and stop < host_draws.get(request_id, 0)
            for request_id, stop, drawn in zip(ids, stops, draws, strict=True)
        ]
        columns.draws[:count][by_host] = -1
        asked, logits = _ask(columns.wanted[: count + 1].tolist(), draws, by_host)
    return Described(
        request_ids=ids,
        stops=stops,
        draws=draws,
        draws_from=columns.wanted[1 : count + 1] - 1,
        slices=count,
        rows=int(columns.bounds[count]),
        wanted=int(columns.wanted[count]),
        num_decodes=num_decodes,
        prefills=_runs(columns, num_decodes, count),
        asked=asked,
        logits=logits,
    )


def _running_sum(numbers: Ints, out: Ints) -> None:
    out[0] = 0
    np.cumsum(numbers, out=out[1 : len(numbers) + 1])


def _ask(
    wanted: Sequence[int], draws: Sequence[bool], by_host: Sequence[bool]
) -> tuple[tuple[Asked, ...], tuple[int, ...]]:
    """Return what the host does, and the wanted rows that it needs for it."""
    asked: list[Asked] = []
    logits: list[int] = []
    for index, drawn in enumerate(draws):
        about_prompt = range(wanted[index], wanted[index + 1] - drawn)
        if not about_prompt and not by_host[index]:
            continue
        first = len(logits)
        logits += about_prompt
        asked.append(Asked(index, first, len(logits), by_host[index]))
        if by_host[index]:
            logits.append(wanted[index + 1] - 1)
    return tuple(asked), tuple(logits)


def _runs(columns: Columns, first: int, count: int) -> tuple[Run, ...]:
    """Return the slices from number `first` on."""
    if first == count:
        return ()
    parts = (columns.bounds[:-1], columns.bounds[1:], columns.rows, columns.starts, columns.stops)
    return tuple(map(Run, *(part[first:count].tolist() for part in parts)))
