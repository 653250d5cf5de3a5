"""Time to live: how long a span stays in the tiers below the KV cache after its last use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import time

# Of the time to live: the age at which a file's time is renewed. A busy prefix costs the thread of
# the disk tier few system calls; after a restart, spans expire earlier by so much at the most.
_RENEW = 0.1


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """`seconds` after its last use a span has expired.

    `clock` gives seconds since the epoch: times of files are compared with it.
    """

    seconds: float = inf
    clock: Callable[[], float] = time

    def left_s(self, used_s: float) -> float:
        """Return for how many seconds a span that was last used then stays."""
        return used_s + self.seconds - self.clock()

    def is_stale(self, file_s: float) -> bool:
        """Return True if the time of a file that is used now has to be renewed."""
        return self.clock() - file_s >= _RENEW * self.seconds


FOREVER = TimeToLive()
