"""Ctrl-C as something to ask for, in place of an exception that may come anywhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Ctrl-C is noted while this is entered; in the main thread only, as signals are."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise KeyboardInterrupt on Ctrl-C inside, for code that waits for a line.

        What came before is settled then: what comes after is for what follows.
        """
        self.came = False
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            yield
        finally:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.came = True
