"""The process of a command: how it ends by Ctrl-C, and where the machine refuses something."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING

from spaninfer.ctrl_c import interrupt_program
from spaninfer.interrupts import Swallowed

if TYPE_CHECKING:
    from typer import Typer

NO_THREAD = "no thread can be started: too little memory, or too many processes (ulimit -v, -u)"


NOT_EVEN_SAID = ("without setting an exception", "without exception set")
"""How Python says that it could not make a MemoryError: of a call, and of an import."""


def run(arguments: Sequence[str], control: int | None = None) -> None:
    """Run the command line in this process, for the supervisor behind a file if there is one."""
    swallowed = Swallowed()
    try:
        _run(arguments, control)
    except Exception:
        if swallowed.again is None:
            raise
        swallowed.again.cancel()
        sys.exit(130)


def _run(arguments: Sequence[str], control: int | None) -> None:
    """Run the command line; errors of the machine are a sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # models write what code pages of Windows lack
            stream.reconfigure(errors="replace")
    try:
        try:
            app = _command_line()
            name = None if control is None else "spaninfer"  # not that of the engine's program
            app(list(arguments), obj=control, prog_name=name)
        finally:
            sys.stdout.flush()  # what fails here would fail when Python ends, with a traceback
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError as short:
        _end(f"memory ran out{f' ({short})' if str(short) else ''}")
    except SystemError as broken:  # as Python says it where it cannot even make a MemoryError
        if not any(words in str(broken) for words in NOT_EVEN_SAID):
            raise
        _end("memory ran out")
    except RuntimeError as refused:
        if "can't start new thread" not in str(refused):
            raise
        _end(NO_THREAD)
    except (ImportError, OSError) as refused:
        if _is_unmapped(refused):
            _end("memory ran out: a library cannot be loaded (ulimit -v)")
        from spaninfer.unwritable import UNWRITABLE  # with rich, which has been imported

        if not isinstance(refused, OSError) or refused.errno not in UNWRITABLE:
            raise
        _end(f"the output cannot be written ({refused.strerror})")
    except BaseException as panic:  # of a library in Rust, whose panics are no Exception
        if "ThreadPoolBuildError" not in str(panic):
            raise
        _end(NO_THREAD)


def _command_line() -> Typer:
    """Import the program. Nothing of that is garbage: looking for some took a fifth of the time."""
    gc.disable()
    from spaninfer.cli import app

    gc.freeze()
    gc.enable()
    interrupt_program()
    return app


def _is_unmapped(refused: BaseException | None) -> bool:
    """Return whether no room for a shared library is behind an error, as the loader says it."""
    while refused is not None and "failed to map segment" not in str(refused):
        refused = refused.__cause__ or refused.__context__
    return refused is not None


def _end(sentence: str) -> None:
    """Say why there is no more to come, where that can be said, and exit with 1."""
    with suppress(OSError):
        print(f"error: {sentence}", file=sys.stderr, flush=True)
    os._exit(1)  # no buffer is written once more
