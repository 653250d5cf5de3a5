"""Eviction from the page cache: files are read from disk again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from spaninfer.bench.page_cache import can_drop, drop, is_dropped, warm


def test_files_are_dropped_and_read_again_with_what_was_written_last(tmp_path: Path) -> None:
    if not can_drop(tmp_path):
        pytest.skip("this system or file system does not say what it holds in memory")
    paths = [tmp_path / "one", tmp_path / "other"]
    for path in paths:
        path.write_bytes(b"x" * (1 << 16))

    drop(paths)

    assert [is_dropped(path) for path in paths] == [True, True]
    warm(paths)
    assert [is_dropped(path) for path in paths] == [False, False]
    assert [path.read_bytes() for path in paths] == [b"x" * (1 << 16)] * 2


def test_nothing_can_be_dropped_where_it_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert not can_drop(tmp_path)
    assert list(tmp_path.iterdir()) == []
