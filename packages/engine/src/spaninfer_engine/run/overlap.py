"""A runner for devices that compute by themselves: the next step is launched while one runs.

    loop        launch 8, wait 7, (its tokens), launch 9, wait 8, …
    device      7 ─────── 8 ──────────────────────────── 9 …

The host keeps what it knows of every request, the device a copy of those that take part in steps.
Tokens go from step to step on the device. Where only the host can draw them (`is_for_host`),
it does so before the next step is launched, which then waits for it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import NoToken

from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.device import Columns, Device, Launched
from spaninfer_engine.plan import Entry, Slice, StepPlan, StepResult
from spaninfer_engine.request import TokenLogprob
from spaninfer_engine.run.describe import Asked, Described, Rotations, describe
from spaninfer_engine.run.requests import Requests
from spaninfer_engine.run.residents import Residents
from spaninfer_engine.run.rotary import Rotary
from spaninfer_engine.run.runner import Draws
from spaninfer_engine.run.sample import is_for_host, wish_of

Logits = NDArray[np.float32]

_log = logging.getLogger(__name__)

_AXES = 3  # of positions, at the most; in text all are equal

_LARGEST = {-1: -math.inf, -2: math.inf, -3: math.nan}
"""The largest logit of a row without a token, by the id that stands for it."""


@dataclass(slots=True)
class _Begun:
    """A step under way, and what became of it once somebody had to know."""

    plan: StepPlan
    described: Described
    launched: Launched
    reports: bool
    result: StepResult | None = None


class OverlappedRunner:
    """Runs plans on a device, one ahead of the other.

    `rotaries` has an entry per rotary embedding of the program: None where the device knows the
    angles of every position.
    """

    lookahead = 1

    def __init__(
        self,
        device: Device,
        sampler: Draws,
        rotaries: Sequence[Rotary | None],
        *,
        num_groups: int,
        span_len: int,
        max_len: int,
        max_running: int,
    ) -> None:
        self._device, self._sampler, self._rotaries = device, sampler, tuple(rotaries)
        self._requests = Requests(
            num_groups, max_len=max_len, span_len=span_len, num_rows=max_running
        )
        self._residents = Residents(device.num_rows)
        self._entries: dict[int, Entry] = {}
        self._host_draws: set[int] = set()  # requests whose tokens the host draws
        self._revising: set[int] = set()  # requests whose wish revises logits
        self._reporting: dict[int, int] = {}  # likeliest tokens that the device reports, by id
        self._newest: _Begun | None = None
        self._drawn: list[tuple[int, int, int]] = []  # by the host: request, position, token

    def start(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Launch the plan's step; where there is no memory for it, each of its requests fails."""
        if self._newest is not None and any(asked.draws for asked in self._newest.described.asked):
            self._settle(self._newest)  # the step reads tokens that are not drawn yet
        self._update(plan)
        try:
            self._newest = begun = self._launch(plan, self._tell(plan))
        except NoMemory as error:
            _log.warning("%s", error)
            self._forget_what_was_told()
            return partial(StepResult.of_none, plan, error)
        return lambda: self._settle(begun)

    def use_time(self) -> bool:
        """Have the device make something ready; return whether there was something."""
        return self._device.use_time()

    def close(self) -> None:
        """Give the device's memory back; harmless when repeated."""
        self._device.close()

    def _forget_what_was_told(self) -> None:
        """Have everything written anew: what came with a step without memory may be lost."""
        if self._newest is not None:
            self._settle(self._newest)  # its tokens are written anew as well
        self._residents = Residents(self._device.num_rows)

    # ---- before a step ---------------------------------------------------------------------------

    def _update(self, plan: StepPlan) -> None:
        for request_id in plan.left:
            self._requests.leave(request_id)
            self._sampler.leave(request_id)
            self._residents.leave(request_id)
            self._host_draws.discard(request_id)
            self._revising.discard(request_id)
            self._reporting.pop(request_id, None)
            del self._entries[request_id]
        for entry in plan.entered:
            self._requests.enter(entry)
            self._sampler.enter(entry)
            self._entries[entry.request_id] = entry
            wish = wish_of(entry)
            if wish.revises:
                self._revising.add(entry.request_id)
            if is_for_host(entry):
                self._host_draws.add(entry.request_id)
            elif wish.logprobs is not None:
                self._reporting[entry.request_id] = wish.logprobs
        for growth in plan.grown:
            self._requests.grow(growth)

    def _tell(self, plan: StepPlan) -> list[int]:
        """Tell the device what is new of requests; return the rows of those in the step.

        What is written before one step must not overlap: it arrives in any order. So a request
        that gets a row is written whole, and then those that keep theirs get what is new.
        """
        rows, placed = self._residents.place([part.request_id for part in plan.slices])
        for request_id, row in placed:
            self._write_whole(request_id, row)
        whole = {request_id for request_id, _ in placed}
        for request_id, group, first, spans in plan.grown:
            at = self._residents.find(request_id)
            if at is not None and request_id not in whole:
                self._device.write_spans(at, group, first, np.array(spans, np.int32))
        for request_id, position, token in self._drawn:
            at = self._residents.find(request_id)
            if at is not None and request_id not in whole:
                self._device.write_tokens(at, position, np.array([token], np.int32))
        self._drawn.clear()
        return rows

    def _write_whole(self, request_id: int, row: int) -> None:
        [at] = self._requests.rows([request_id]).tolist()
        known = self._requests.tokens[at, : self._requests.num_known[at]]
        self._device.write_tokens(row, 0, known)
        for group, table in enumerate(self._requests.tables):
            self._device.write_spans(row, group, 0, table[at])
        self._device.write_wish(row, wish_of(self._entries[request_id]))

    # ---- a step ----------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan, rows: Sequence[int]) -> _Begun:
        columns = self._device.columns()
        described = describe(plan.slices, rows, columns, self._host_draws)
        rotations = self._rotations(plan.slices, columns)
        revises = not self._revising.isdisjoint(described.request_ids)
        reports = not self._reporting.keys().isdisjoint(described.request_ids)
        launch = described.launch(rotations, revises=revises, reports=reports)
        return _Begun(plan, described, self._device.launch(launch), reports)

    def _rotations(self, slices: Sequence[Slice], columns: Columns) -> Rotations:
        """Return the angles of rotary embeddings whose frequencies depend on length."""
        if not any(self._rotaries):
            return (None,) * len(self._rotaries)
        count = len(slices)
        lengths = np.diff(columns.bounds[: count + 1])
        ahead = columns.starts[:count] - columns.bounds[:count]
        position = np.arange(columns.bounds[count], dtype=np.int32) + np.repeat(ahead, lengths)
        places = np.broadcast_to(position, (_AXES, len(position)))
        planned_len = np.repeat(np.array([part.rope_len for part in slices], np.int32), lengths)
        return tuple(
            None if rotary is None else rotary.angles(places, position, planned_len)
            for rotary in self._rotaries
        )

    # ---- after a step ----------------------------------------------------------------------------

    def _settle(self, begun: _Begun) -> StepResult:
        """Wait for a step, if that has not been done, and return what it drew."""
        if begun.result is None:
            begun.result = self._result(begun)
        return begun.result

    def _result(self, begun: _Begun) -> StepResult:
        slices, described = begun.plan.slices, begun.described
        token_ids = begun.launched.token_ids()
        tokens: list[int | None] = [None] * len(slices)
        if described.wanted:
            tokens = token_ids[described.draws_from].tolist()
        if not all(described.draws):
            tokens = [t if d else None for t, d in zip(tokens, described.draws, strict=True)]
        failed: dict[int, Exception] = {}
        logprobs = self._reported(begun, tokens) if begun.reports else {}
        prompt_logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
        if described.asked:
            logits = begun.launched.logits()
            prompt_logprobs = self._about_prompts(slices, described.asked, logits)
            logprobs |= self._draw(slices, described.asked, logits, tokens, failed)
        for index, token in enumerate(tokens):
            if token is not None and token < 0:
                tokens[index] = None
                failed[slices[index].request_id] = NoToken(index, _LARGEST[token])
        self._keep(described, tokens)
        return StepResult(begun.plan.number, tuple(tokens), logprobs, prompt_logprobs, failed)

    def _reported(self, begun: _Begun, tokens: Sequence[int | None]) -> dict[int, TokenLogprob]:
        """Return what the device says of tokens whose requests ask for log-probabilities."""
        described, reports = begun.described, begun.launched.reports()
        found = {}
        for request_id, row, token in zip(
            described.request_ids, described.draws_from.tolist(), tokens, strict=True
        ):
            count = self._reporting.get(request_id)
            if count is None or token is None or token < 0:
                continue
            tops = reports.top_ids[row, :count].tolist(), reports.top[row, :count].tolist()
            found[request_id] = TokenLogprob(
                token,
                float(reports.chosen[row]),
                int(reports.ranks[row]),
                tuple(pair for pair in zip(*tops, strict=True) if pair[0] >= 0),
            )
        return found

    def _draw(
        self,
        slices: Sequence[Slice],
        asked: Sequence[Asked],
        logits: Logits,
        tokens: list[int | None],
        failed: dict[int, Exception],
    ) -> dict[int, TokenLogprob]:
        """Draw what the host must, into `tokens`, and for the device to be told."""
        here = [item for item in asked if item.draws and self._knows(slices[item.index])]
        if not here:
            return {}
        ids = [slices[item.index].request_id for item in here]
        stops = [slices[item.index].stop for item in here]
        known = self._requests.known(ids, stops)
        drawn, logprobs, at_fault = self._sampler.draw(
            logits[[item.last for item in here]], ids, stops, known
        )
        for item, request_id, stop, token in zip(here, ids, stops, drawn, strict=True):
            tokens[item.index] = None if request_id in at_fault else token
            self._drawn.append((request_id, stop, token))
        failed.update(at_fault)
        return logprobs

    def _about_prompts(
        self, slices: Sequence[Slice], asked: Sequence[Asked], logits: Logits
    ) -> dict[int, tuple[TokenLogprob, ...]]:
        """Return what the sampler says of the tokens that follow positions with logits."""
        found = {}
        for item in asked:
            part, count = slices[item.index], item.last - item.first
            if not count or not self._knows(part):
                continue
            first = part.logits_from + 1
            (known,) = self._requests.known([part.request_id], [first + count])
            found[part.request_id] = self._sampler.prompt_logprobs(
                part.request_id, logits[item.first : item.last], known[first:]
            )
        return found

    def _knows(self, part: Slice) -> bool:
        """Is the slice's request remembered? It may have ended, and left, since the step began."""
        return part.request_id in self._requests

    def _keep(self, described: Described, tokens: Sequence[int | None]) -> None:
        """Write drawn tokens to where the host remembers those requests that it still knows."""
        kept = list(zip(described.request_ids, described.stops, tokens, strict=True))
        if None in tokens:
            kept = [item for item in kept if item[2] is not None]
        if kept:
            self._requests.write(*zip(*kept, strict=True))
