"""Ctrl-C as something to ask for, in place of an exception that may come anywhere."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.05
"""When an interrupt comes once more that was swallowed: the code that did so has ended by then."""


class Swallowed:
    """Ctrl-C that was raised in code that cannot pass it on; it comes again, and nothing is said.

    Callbacks that a library in C calls, and finalizers, are such code: Python prints what they
    raise, and the program goes on. LLVM calls one for every kernel that is loaded. Until it comes
    again, `again` is set: an error in between is of a library whose callback was cut short.
    """

    def __init__(self) -> None:
        """Begin to listen; to be called in the main thread."""
        self.again: threading.Timer | None = None
        self._before, self._main = sys.unraisablehook, threading.get_ident()
        sys.unraisablehook = self._hear

    def _hear(self, unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._before(unraisable)
            return
        self.again = threading.Timer(AGAIN_S, self._interrupt)
        self.again.daemon = True
        self.again.start()

    def _interrupt(self) -> None:
        self.again = None
        if hasattr(signal, "pthread_kill"):  # which wakes a thread that waits, too
            signal.pthread_kill(self._main, signal.SIGINT)
        else:
            _thread.interrupt_main()


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
