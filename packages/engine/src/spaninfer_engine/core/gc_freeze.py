"""Long-lived objects kept out of garbage collection while an engine runs."""

from __future__ import annotations

import gc
from threading import Lock
from typing import ClassVar

from spaninfer_engine.resource import Resource

YOUNG = 20_000
"""Objects that must have come, less those that went, before the collector looks at them: Python's
700 are those of three steps of 256 requests, most of which are gone two steps later."""


class GcFreeze(Resource):
    """Every object there is when this is made: collections pass over them until it is closed.

    A full collection reads all objects that are tracked. After importing torch that took 100 to
    190 ms, in which no step was launched: 0.5 s of a mixed load of 19 s, and 0.9 ms of the 9.5 that
    256 requests needed for a token (H200, 2026-11-21). They are so many because of what a start
    leaves, which stays; what comes later is collected as ever, but not before there are `YOUNG`.
    Cycles of spared objects that are dropped meanwhile are freed afterwards.
    """

    _lock: ClassVar = Lock()
    _num_open: ClassVar[int] = 0  # the interpreter has one collector for all engines
    _thresholds: ClassVar[tuple[int, int, int]]  # as they were before the first

    def __init__(self) -> None:
        self._is_open = True
        with self._lock:
            if not GcFreeze._num_open:
                GcFreeze._thresholds = gc.get_threshold()
                young, *older = GcFreeze._thresholds
                gc.set_threshold(max(young, YOUNG) if young else 0, *older)  # 0: never
            GcFreeze._num_open += 1
            gc.freeze()

    def close(self) -> None:
        """Make them collectable again, once no other freezes any; idempotent."""
        with self._lock:
            GcFreeze._num_open -= self._is_open
            if self._is_open and not GcFreeze._num_open:
                gc.unfreeze()
                gc.set_threshold(*GcFreeze._thresholds)
            self._is_open = False
