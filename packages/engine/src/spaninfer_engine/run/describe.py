"""From slices to the columns of a step on a device, and what the host does with its logits."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import gt, sub

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
    slices: Sequence[Slice], rows: Sequence[int], columns: Columns, host_draws: Set[int]
) -> Described:
    """Fill the columns of a step of these slices, whose requests are remembered in `rows`.

    `host_draws` are the ids of requests whose tokens the host draws.
    """
    ids, starts, stops, logits_from, draws, _ = zip(*slices, strict=True)
    count = len(ids)
    columns.rows[:count] = rows
    columns.starts[:count] = starts
    columns.stops[:count] = stops
    columns.draws[:count] = [
        stop if drawn else -1 for stop, drawn in zip(stops, draws, strict=True)
    ]
    lengths, num_wanted = list(map(sub, stops, starts)), list(map(sub, stops, logits_from))
    bounds = columns.bounds[: count + 1] = list(accumulate(lengths, initial=0))
    wanted = columns.wanted[: count + 1] = list(accumulate(num_wanted, initial=0))
    num_decodes = next((i for i, length in enumerate(lengths) if length > 1), count)
    asked: tuple[Asked, ...] = ()
    logits: tuple[int, ...] = ()
    if host_draws or any(map(gt, num_wanted, draws)):
        by_host = [
            drawn and request_id in host_draws for request_id, drawn in zip(ids, draws, strict=True)
        ]
        columns.draws[:count][by_host] = -1
        asked, logits = _ask(wanted, draws, by_host)
    parts = (bounds[:-1], bounds[1:], rows, starts, stops)
    return Described(
        request_ids=ids,
        stops=stops,
        draws=draws,
        draws_from=columns.wanted[1 : count + 1] - 1,
        slices=count,
        rows=bounds[-1],
        wanted=wanted[-1],
        num_decodes=num_decodes,
        prefills=tuple(map(Run, *(part[num_decodes:] for part in parts))),
        asked=asked,
        logits=logits,
    )


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
