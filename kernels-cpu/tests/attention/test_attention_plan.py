"""Consecutive plans of attention in the same memory."""

from __future__ import annotations

import numpy as np
from spaninfer_kernels_cpu import PlanKind, PlanMemory, PlanRows, plan_attention


def test_memory_holds_the_latest_plan_whatever_was_there_before() -> None:
    memory = PlanMemory(PlanKind(2))

    for lengths in ([3], [1, 700, 2], [4000], [5, 1], [900] * 9, [1]):  # tokens of each request
        request = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        position = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        rows = PlanRows(request.ctypes.data, position.ctypes.data, 0, len(request))

        count, num_parts = memory.write(rows)

        items, expected_parts = plan_attention(request, position, PlanKind(2))
        assert memory.items[:count].tolist() == items.tolist()
        assert memory.address == memory.items.ctypes.data
        assert num_parts == expected_parts
        whole = items[items[:, 6] < 0]  # what is attended in one go is attended from the start
        assert (whole[:, 4] == 0).all()
