"""Ctrl-C while a program is imported: it ends the process at once, as it ends one written in C.

KeyboardInterrupt would be raised in the midst of an import, where nothing catches it yet, or where
a callback swallows it. Programs call `end_program` before they import anything else: what comes
before, as Python itself, answers Ctrl-C with a traceback. So this module imports what is built in
alone: `signal` would import `enum` and `collections`.
"""

import _signal as signal  # type: ignore[import-not-found]


def end_program() -> None:
    """Let Ctrl-C end this process, unless it is ignored, as it is behind a shell's `&`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_program() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from now on, if it has ended the process."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
