"""Memory of plan and workspace: it stays where it is while steps are alike."""

import numpy as np
from span_attention.kept_memory import KeptMemory


def allocate(stream):
    return np.empty(64, np.uint8), np.empty(stream, np.uint8)


def test_memory_is_allocated_where_the_key_is_another():
    memory = KeptMemory()

    first = memory.at((4, "a"), allocate, 8)
    again = memory.at((4, "a"), lambda _: (), 8)
    other = memory.at((5, "a"), allocate, 8)

    assert again == first
    assert len(first) == len(other) == 2
    assert memory.at((4, "a"), lambda _: (), 8) == ()
