"""Ids of requests and answers: random, and made without a call of the system.

Such a call lets other threads have the interpreter; beside a busy engine it comes back half a
millisecond later. These ids can be foretold by who has seen many: knowing one must open nothing.
Stored responses, which are fetched by their ids, have secret ones.
"""

from __future__ import annotations

import os
from random import Random, SystemRandom

BITS_PER_DIGIT = 4

_random = Random(SystemRandom().getrandbits(256))
if hasattr(os, "register_at_fork"):  # else children would give the ids of their parent
    os.register_at_fork(after_in_child=lambda: _random.seed(SystemRandom().getrandbits(256)))


def new_hex(num_digits: int = 32) -> str:
    """Return that many random hexadecimal digits."""
    return f"{_random.getrandbits(BITS_PER_DIGIT * num_digits):0{num_digits}x}"
