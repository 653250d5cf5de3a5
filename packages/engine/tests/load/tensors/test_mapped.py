"""Files as memory, and what of it a process is shown with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from spaninfer_engine.load.tensors.mapped import map_file, release_pages


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's accounts")
def test_pages_that_are_released_come_back_when_they_are_read(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    path = tmp_path / "numbers"
    path.write_bytes(numbers.tobytes())
    view = map_file(path)[4096:]
    total = view.sum()
    before = resident_bytes(path)

    release_pages()

    assert resident_bytes(path) == 0 < before
    assert view.sum() == total == numbers[4096:].sum()


def resident_bytes(path: Path) -> int:
    """Return the bytes of a file's mappings that this process holds in memory."""
    accounts = Path("/proc/self/smaps").read_text(encoding="utf-8").split("VmFlags")
    of_file = [account for account in accounts if str(path) in account]
    lines = [line for account in of_file for line in account.splitlines() if line[:4] == "Rss:"]
    assert lines, f"{path} is not mapped"
    return 1024 * sum(int(line.split()[1]) for line in lines)
