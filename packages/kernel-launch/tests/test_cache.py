"""The cache of compiled kernels: entries are whole or absent, also with concurrent writers."""

import os
import subprocess
import sys

import pytest
from spaninfer_kernel_launch import FileCache, user_cache
from spaninfer_kernel_launch import cache as cache_module

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


MAKER = """
import sys
from pathlib import Path
from time import sleep
from spaninfer_kernel_launch import FileCache
folder = Path(sys.argv[1])
cache = FileCache(folder / "cache")
(folder / f"ready {sys.argv[2]}").touch()
while len(list(folder.glob("ready *"))) < 3:
    sleep(0.01)
with cache.locked("key"):
    if cache.find("key") is None:
        sleep(0.5)  # all have looked by then
        print("made")
        cache.keep("key", b"machine code")
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


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_of_processes_that_want_an_entry_at_once_one_makes_it(tmp_path):
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path), name], stdout=subprocess.PIPE, text=True
        )
        for name in "abc"
    ]

    printed = [maker.communicate()[0] for maker in makers]

    assert sorted(printed) == ["", "", "made\n"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key.bin"]


def test_a_lock_that_is_not_given_back_keeps_nobody_from_making_the_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "LOCK_S", 0.1)
    cache = FileCache(tmp_path)

    with cache.locked("key"), cache.locked("key"), cache.locked("another"):
        cache.keep("key", b"machine code")

    assert cache.find("key") == b"machine code"


def test_where_no_folder_takes_a_lock_there_is_none(tmp_path):
    (tmp_path / "file").touch()

    with FileCache(tmp_path / "file" / "cache").locked("key"), FileCache(None).locked("key"):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["file"]


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert user_cache().folder == tmp_path / "spaninfer" / "kernels"


KEEP_TWO = """
from spaninfer_kernel_launch import user_cache
cache = user_cache()
known = cache.find("one")
cache.keep("one", b"1")
cache.keep("two", b"2")
print(known, cache.find("one"), cache.find("two"))
"""


def started(temporary, **variables):
    """What a process prints that keeps two kernels."""
    return subprocess.run(
        [sys.executable, "-c", KEEP_TWO],
        env=os.environ | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": ""} | variables,
        capture_output=True,
        text=True,
    )


def test_what_the_users_folder_does_not_take_the_temporary_one_keeps_for_the_next_start(tmp_path):
    (tmp_path / "file").touch()
    home = str(tmp_path / "file" / "home")  # cannot be made, not even by root

    first, second = (started(tmp_path, HOME=home, USERPROFILE=home) for _ in range(2))

    assert first.stdout == "None b'1' b'2'\n"
    assert second.stdout == "b'1' b'1' b'2'\n"
    for ran in (first, second):
        assert ran.stderr.count("RuntimeWarning") == 1
        assert "set XDG_CACHE_HOME to a folder that can be written" in ran.stderr
        assert f"kept in {tmp_path}" in ran.stderr


def test_what_no_folder_takes_is_said_once_and_costs_no_error(tmp_path):
    (tmp_path / "file").touch()
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    (tmp_path / f"spaninfer{user}").touch()

    ran = started(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))

    assert ran.stdout == "None None None\n"
    assert ran.stderr.count("RuntimeWarning") == 1
    assert "kept in memory" in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="users without a name are a thing of POSIX")
def test_a_user_without_a_home_and_without_a_name_keeps_kernels_in_the_temporary_folder(
    tmp_path, monkeypatch
):
    def no_entry(_user):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cache = user_cache()

    with pytest.warns(RuntimeWarning, match="there is no home folder.*set XDG_CACHE_HOME"):
        cache.keep("key", b"machine code")

    assert cache.folder is None
    assert cache.find("key") == b"machine code"


def test_a_full_disk_costs_no_error(tmp_path):
    pytest.importorskip("resource", reason="limits of files are a thing of POSIX")
    program = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n{KEEP_TWO}"

    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )

    assert ran.stdout == "None None None\n", ran.stderr
    assert ran.stderr.count("RuntimeWarning") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such modes there")
def test_whoever_may_read_the_users_files_may_read_kernels_too(tmp_path):
    """Root fills the cache of an image; whoever runs it is another user."""
    cache = FileCache(tmp_path)
    (tmp_path / "plain").touch()

    cache.keep("key", b"machine code")

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        (tmp_path / "plain").stat().st_mode & 0o777
    }


@pytest.mark.skipif(sys.platform == "win32", reason="temporary folders are the user's own there")
def test_a_spare_folder_that_others_write_to_is_neither_read_nor_written(tmp_path):
    """Whoever writes there decides what machine code this process runs."""
    (tmp_path / "file").touch()
    cache = FileCache(tmp_path / "file" / "cache", tmp_path / "shared" / "kernels")
    with pytest.warns(RuntimeWarning, match=f"kept in {tmp_path / 'shared'}"):
        cache.keep("key", b"machine code")
    assert cache.find("key") == b"machine code"

    (tmp_path / "shared").chmod(0o777)

    assert cache.find("key") is None
    with pytest.warns(RuntimeWarning, match="others may write to .*shared.*kept in memory"):
        cache.keep("another", b"machine code")
    assert len(list((tmp_path / "shared" / "kernels").iterdir())) == 1
