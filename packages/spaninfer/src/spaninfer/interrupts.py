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


def deliver_ignored() -> None:
    """Have Ctrl-C come again, and say nothing, where it was raised in code that cannot pass it on.

    Callbacks that a library in C calls, and finalizers, are such code: Python prints what they
    raise, and the program goes on. LLVM calls one for every kernel that is loaded. To be called in
    the main thread.
    """
    before, main = sys.unraisablehook, threading.get_ident()

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            before(unraisable)
            return
        again = threading.Timer(AGAIN_S, _interrupt, [main])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def _interrupt(thread: int) -> None:
    if hasattr(signal, "pthread_kill"):  # which wakes a thread that waits, too
        signal.pthread_kill(thread, signal.SIGINT)
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
