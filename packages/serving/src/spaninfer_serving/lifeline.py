"""The end of a process with the one that started it, from the first moment on.

Imports take seconds, in which a process without a parent would keep the address that it inherited.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

LOOK_MS: Final = 100.0


def end_with(fd: int) -> Callable[[], None]:
    """End this process at once where the other end of a Unix socket is closed; return what stops
    that.
    """
    released = Event()
    own = os.dup(fd)  # the number of a file that is closed may be another's

    def watch() -> None:
        poll = select.poll()
        poll.register(own, 0)  # a hangup is told without being asked for
        while not released.is_set():
            if poll.poll(LOOK_MS) and not released.is_set():
                os._exit(1)
        os.close(own)

    Thread(target=watch, name="lifeline", daemon=True).start()
    return released.set
