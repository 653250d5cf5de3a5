"""Objects that Python's garbage collector need not look at while an engine runs."""

from __future__ import annotations

import gc
from threading import Lock
from typing import ClassVar

from spaninfer_engine.closing import Closing


class Spared(Closing):
    """Every object there is when this is made: collections pass over them until it is closed.

    A full collection reads all objects that are tracked. After importing torch that took 100 to
    190 ms, in which no step was launched: 0.5 s of a mixed load of 19 s, and 0.9 ms of the 9.5 that
    256 requests needed for a token (H200, 2026-11-21). They are so many because of what a start
    leaves, which stays; what comes later is collected as ever. Cycles of spared objects that are
    dropped meanwhile are freed afterwards.
    """

    _lock: ClassVar = Lock()
    _num_open: ClassVar[int] = 0  # the interpreter has one collector for all engines

    def __init__(self) -> None:
        self._is_open = True
        with self._lock:
            Spared._num_open += 1
            gc.freeze()

    def close(self) -> None:
        """Have them looked at again, once nobody else spares any; harmless when repeated."""
        with self._lock:
            Spared._num_open -= self._is_open
            self._is_open = False
            if not Spared._num_open:
                gc.unfreeze()
