"""Texts of all requests, computed in steps that they share.

A step takes texts while they fit, one client's after another's (`fair_queue`), so that a request
with a thousand texts keeps none with one of them waiting. Texts of a client that has left are left
out of the steps that follow. To be used by the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from spaninfer_engine.serving import Text

from spaninfer_serving.admission.fair_queue import Client, FairQueue
from spaninfer_serving.error_mapping import busy

if TYPE_CHECKING:
    from spaninfer_engine import Engine

Rows = NDArray[np.float32]


@dataclass(eq=False, slots=True)
class _Request:
    """Texts of one request, and their rows so far."""

    num_waiting: int  # texts that no step has taken
    num_missing: int  # texts without rows
    result: asyncio.Future[list[Rows]]
    rows: dict[int, Rows] = field(default_factory=dict)
    begun_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Item:
    """One text: number `index` of its request."""

    request: _Request
    index: int
    text: Text


class TextBatcher:
    """Computes the rows of texts with one engine, a step at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._most_waiting = engine.resolved.max_waiting
        self._queue: FairQueue[_Item] = FairQueue()
        self._held: _Item | None = None  # did not fit into the step before
        self._num_waiting = 0
        self._is_busy = False
        self._thread = ThreadPoolExecutor(1, "spaninfer-texts")

    async def rows(self, client: Client, texts: Sequence[Text]) -> tuple[Rows, float]:
        """Return the rows [N C] of N texts, N >= 1, and when the first of their steps began.

        Raises Problem 429 where too many texts wait, and what a step raises. Cancelling it takes
        the texts back that are in no step yet.
        """
        if self._num_waiting and self._num_waiting + len(texts) > self._most_waiting:
            raise busy(
                f"{self._num_waiting} texts are waiting, and this request has {len(texts)}; "
                f"max_waiting is {self._most_waiting}; try again later"
            )
        future: asyncio.Future[list[Rows]] = asyncio.get_running_loop().create_future()
        request = _Request(len(texts), len(texts), future)
        self._num_waiting += len(texts)
        for index, text in enumerate(texts):
            self._queue.put(client, len(text.ids), _Item(request, index, text))
        self._start_next()
        try:
            rows = np.stack(await future)
        finally:
            self._num_waiting -= request.num_waiting
            request.num_waiting = 0
        assert request.begun_s is not None
        return rows, request.begun_s

    def _start_next(self) -> None:
        """Begin the next step, if there is none and texts wait."""
        if self._is_busy or not (items := self._take()):
            return
        self._is_busy = True
        now_s = monotonic()
        for item in items:
            request = item.request
            request.num_waiting -= 1
            self._num_waiting -= 1
            request.begun_s = request.begun_s or now_s
        loop = asyncio.get_running_loop()
        begun = self._thread.submit(self.engine.rows_and_errors, [item.text for item in items])

        def report(done: Future[tuple[Rows, dict[int, Exception]]]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and what waited with it
                loop.call_soon_threadsafe(self._finish, items, done)

        begun.add_done_callback(report)

    def _take(self) -> list[_Item]:
        """Return the texts of the next step."""
        resolved = self.engine.resolved
        items: list[_Item] = []
        num_tokens = 0
        while (self._held or len(self._queue)) and len(items) < resolved.max_running:
            item, self._held = self._held or self._queue.take(), None
            if item.request.result.done():  # its client has left, or another text's step failed
                continue
            if items and num_tokens + len(item.text.ids) > resolved.step_tokens:
                self._held = item
                break
            items.append(item)
            num_tokens += len(item.text.ids)
        return items

    def _finish(
        self, items: Sequence[_Item], done: Future[tuple[Rows, dict[int, Exception]]]
    ) -> None:
        """Hand out the rows of a step, and errors to those whose text failed, or all of them."""
        self._is_busy = False
        refused = done.exception()
        rows, errors = (None, {}) if refused is not None else done.result()
        for number, item in enumerate(items):
            request = item.request
            if request.result.done():
                continue
            if rows is None or number in errors:
                request.result.set_exception(refused or errors[number])
                continue
            request.rows[item.index] = rows[number]
            request.num_missing -= 1
            if not request.num_missing:
                request.result.set_result([request.rows[i] for i in range(len(request.rows))])
        self._start_next()
