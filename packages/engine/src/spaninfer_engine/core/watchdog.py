"""The watchdog: a thread that notices when a step does not end."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic


class Watchdog:
    """Calls `on_hung` with the limit, once, when a step takes longer; in a thread of its own."""

    def __init__(self, limit_s: float, on_hung: Callable[[float], None]) -> None:
        self._limit_s, self._on_hung = limit_s, on_hung
        self._began_s: float | None = None  # None: no step is under way
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="spaninfer-watchdog", daemon=True).start()

    def begin(self) -> None:
        """Note that a step begins now."""
        self._began_s = monotonic()

    def end(self) -> None:
        """Note that it has ended."""
        self._began_s = None

    def close(self) -> None:
        """End the thread soon; idempotent."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._limit_s / 4):
            began_s = self._began_s
            if began_s is not None and monotonic() - began_s > self._limit_s:
                self._on_hung(self._limit_s)
                return


def stacks() -> str:
    """Return what every other thread of the process is doing."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
