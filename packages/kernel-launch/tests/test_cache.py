"""Entries are whole or absent, whoever writes at the same time."""

import os
import subprocess
import sys

import pytest
from spaninfer_kernel_launch import FileCache, user_cache

WRITER = """
import sys
from pathlib import Path
from spaninfer_kernel_launch import FileCache
cache = FileCache(Path(sys.argv[1]))
for _ in range(50):
    cache.keep("shared", sys.argv[2].encode() * 100_000)
    kept = cache.find("shared")
    assert kept is not None and len(set(kept)) == 1, "half of an entry"
"""


def test_what_is_kept_is_found(tmp_path):
    cache = FileCache(tmp_path / "not" / "yet")

    cache.keep("key", b"machine code")

    assert cache.find("key") == b"machine code"
    assert cache.find("other") is None


def test_concurrent_writers_and_readers_see_whole_entries(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), letter]) for letter in "abc"
    ]

    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["shared.bin"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda _: b"",
        lambda content: content[:40] + b"X" + content[41:],
    ],
    ids=["cut", "longer", "empty", "altered"],
)
def test_a_damaged_entry_counts_as_absent_and_can_be_replaced(tmp_path, damage):
    cache = FileCache(tmp_path)
    cache.keep("key", b"some machine code")
    [path] = tmp_path.iterdir()

    path.write_bytes(damage(path.read_bytes()))

    assert cache.find("key") is None
    cache.keep("key", b"again")
    assert cache.find("key") == b"again"


def test_the_users_cache_folder_is_used(monkeypatch, tmp_path):
    if os.name == "nt":
        pytest.skip("XDG_CACHE_HOME means nothing on Windows")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert user_cache().folder == tmp_path / "spaninfer" / "kernels"
