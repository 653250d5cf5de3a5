"""Output that cannot be written: the disk is full, or broken."""

from __future__ import annotations

import errno
from typing import Any, Final

from rich.console import Console

UNWRITABLE: Final = (errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)


class Diagnostics(Console):
    """Standard error. What cannot be written there is left out: no server ends because its log has
    no room.
    """

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, if that can be written."""
        try:
            super().print(*objects, **options)
        except OSError as refused:
            if refused.errno not in UNWRITABLE:
                raise
