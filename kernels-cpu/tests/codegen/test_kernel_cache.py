"""The cache of compiled kernels: its folders, the files it trusts, and full or missing disks."""

import errno
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from mounts import run_beside
from spaninfer_kernels_cpu.codegen import kernel_cache
from spaninfer_kernels_cpu.codegen.kernel_cache import KernelCache, is_private

TWO_KERNELS = """
from spaninfer_kernels_cpu.codegen.kernel import address_of, native_of
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _gather_rows
kernels = _copy, _gather_rows
print(all(map(address_of, kernels)), sum(native_of(kernel).was_loaded for kernel in kernels))
"""

BY_OTHERS = """
from spaninfer_kernels_cpu.runtime import compilers
from spaninfer_kernels_cpu.codegen.kernel import native_of, is_ready
from spaninfer_kernels_cpu.elementwise.gather_call import _copy, _gather_rows
compilers.LITTLE_S = 0.0
kernels = _copy, _gather_rows
compilers.Compilers(most=3).finish(kernels)
print(all(map(is_ready, kernels)), sum(native_of(kernel).was_loaded for kernel in kernels))
"""

AT_ONCE = """
import sys
from pathlib import Path
from time import sleep
from spaninfer_kernels_cpu.codegen.compiled import NativeFunction
from spaninfer_kernels_cpu.codegen.kernel import address_of, native_of
from spaninfer_kernels_cpu.elementwise.gather_call import _copy
folder = Path(sys.argv[1])
load = NativeFunction._load
def load_and_wait(native):
    found = load(native)
    (folder / f"looked {sys.argv[2]}").touch()
    while len(list(folder.glob("looked *"))) < 2:
        sleep(0.01)
    return found
NativeFunction._load = load_and_wait
address_of(_copy)
print(int(native_of(_copy).was_loaded))
"""

NOBODY_WE_KNOW = """
import os, pwd
assert os.getuid() not in {user.pw_uid for user in pwd.getpwall()}
"""


def untidy(_folder):
    """Delete nothing."""


@pytest.fixture
def temporary(tmp_path):
    """The temporary folder of a process, as its environment says."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def test_a_report_says_where_files_go_how_many_bytes_there_are_and_why_not_elsewhere(tmp_path):
    (tmp_path / "file").write_text("")
    shared, good = tmp_path / "shared", tmp_path / "good"
    for folder, mode in ((shared, 0o777), (good, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
        (folder / "kernel").write_bytes(bytes(1000))
    lasting = KernelCache((tmp_path / "file" / "a", shared, good), tmp_path / "tmp", untidy)
    passing = KernelCache((shared,), tmp_path / "tmp", untidy)
    nowhere = KernelCache((shared,), None, untidy)

    first, second, third = (each.report() for each in (lasting, passing, nowhere))

    assert (first.folder, first.is_lasting, first.num_bytes) == (good, True, 1000)
    assert first.refused[tmp_path / "file" / "a"] == os.strerror(errno.ENOTDIR)
    assert "may write to it" in first.refused[shared]
    assert (second.folder, second.is_lasting) == (tmp_path / "tmp", False)
    assert (third.folder, third.num_bytes) == (None, 0)


def settings(temporary, chosen=None):
    return {"TMPDIR": str(temporary), "NUMBA_CACHE_DIR": str(chosen or ""), "XDG_CACHE_HOME": ""}


def started(program, environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


def files_below(folder):
    return sorted(path.name for path in folder.rglob("*.kernel"))


@pytest.mark.parametrize("program", [TWO_KERNELS, BY_OTHERS], ids=["alone", "by others"])
def test_where_the_chosen_folder_cannot_be_made_the_temporary_one_serves_the_next_start_too(
    temporary, tmp_path, program
):
    (tmp_path / "file").touch()
    environment = settings(temporary, tmp_path / "file" / "cache")  # a folder even for root

    first, second = started(program, environment), started(program, environment)

    assert len(files_below(temporary)) == 2
    assert first.stderr.count("RuntimeWarning") == 1
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in first.stderr
    assert str(temporary) in first.stderr
    assert (second.stdout, second.stderr) == ("True 2\n", "")


@pytest.mark.parametrize("program", [TWO_KERNELS, BY_OTHERS], ids=["alone", "by others"])
def test_where_no_folder_can_be_made_kernels_are_kept_in_memory(temporary, tmp_path, program):
    (tmp_path / "file").touch()
    user = f"-{os.getuid()}" if hasattr(os, "getuid") else ""
    (temporary / f"spaninfer{user}").touch()

    ran = started(program, settings(temporary, tmp_path / "file" / "cache"))

    assert ran.stdout == "True 0\n"
    assert ran.stderr.count("RuntimeWarning") == 1
    assert "kept in memory" in ran.stderr
    assert "set NUMBA_CACHE_DIR" in ran.stderr


@pytest.mark.parametrize("program", [TWO_KERNELS, BY_OTHERS], ids=["alone", "by others"])
def test_a_warmed_cache_that_is_read_only_is_read_without_a_word(temporary, tmp_path, program):
    cache = tmp_path / "cache"
    environment = settings(temporary, cache)
    started(program, environment)

    ran = run_beside(["-c", program], environment, read_only=(cache,))

    assert (ran.stdout, ran.stderr) == ("True 2\n", "")


@pytest.mark.parametrize("program", [TWO_KERNELS, BY_OTHERS], ids=["alone", "by others"])
def test_a_full_disk_loses_no_kernel(temporary, tmp_path, program):
    cache = tmp_path / "cache"
    cache.mkdir()
    environment = settings(temporary, cache)

    ran = run_beside(["-c", program], environment, full=(cache,))

    assert ran.stdout.startswith("True"), ran.stderr
    assert len(files_below(temporary)) == 2
    assert ran.stderr.count("RuntimeWarning") == 1
    assert "No space left" in ran.stderr


@pytest.mark.parametrize("home", [None, "", "/nonexistent"], ids=["none", "empty", "nowhere"])
def test_a_user_without_a_home_and_without_a_name_compiles(temporary, home):
    """Everything is read-only but the temporary folder: the image of a container."""
    package = Path(kernel_cache.__file__).parents[1]

    ran = run_beside(
        ["-c", NOBODY_WE_KNOW + TWO_KERNELS],
        settings(temporary) | {"HOME": home},
        read_only=(package,),
        as_stranger=True,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("True")
    assert not Path("~").exists()


def test_files_that_are_not_what_was_written_are_compiled_again(tmp_path, temporary):
    """One is cut short, one something else (test_object_code has more that may happen)."""
    environment = settings(temporary, tmp_path / "cache")
    started(TWO_KERNELS, environment)
    first, second = tmp_path.rglob("*.kernel")
    first.write_bytes(first.read_bytes()[:-100])
    second.write_bytes(b"\x80\x04\x95" + bytes(200))

    again, then = started(TWO_KERNELS, environment), started(TWO_KERNELS, environment)

    assert (again.stdout, again.stderr) == ("True 0\n", "")
    assert then.stdout == "True 2\n"


ON_UNIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows has other rights")


@ON_UNIX
@pytest.mark.parametrize("rights", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("lasts", [True, False])
def test_a_folder_that_others_write_to_is_neither_read_nor_written(tmp_path, rights, lasts):
    """Whoever writes there decides what machine code this process runs."""
    folder = tmp_path / "folder"
    places = ((folder,), None) if lasts else ((), folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it may not last
        KernelCache(*places, untidy).write("kernel", b"code")
    assert KernelCache(*places, untidy).read("kernel") == b"code"

    folder.chmod(rights)
    another = KernelCache(*places, untidy)

    assert not is_private(folder)
    assert another.read("kernel") is None
    assert not another.has("kernel")
    assert another.writable() is None
    with pytest.warns(RuntimeWarning, match="another user owns it or may write to it"):
        another.write("kernel", b"code")


@ON_UNIX
def test_a_file_that_others_write_to_is_not_read(tmp_path):
    cache = KernelCache((tmp_path / "folder",), None, untidy)
    cache.write("kernel", b"code")

    (tmp_path / "folder" / "kernel").chmod(0o666)

    assert cache.read("kernel") is None


@ON_UNIX
@pytest.mark.parametrize("file", [False, True], ids=["folder", "file"])
def test_what_another_user_owns_is_not_read(tmp_path, file):
    folder = tmp_path / "folder"
    cache = KernelCache((folder,), None, untidy)
    cache.write("kernel", b"code")
    if os.getuid() != 0:
        pytest.skip("only root gives files away")

    os.chown(folder / "kernel" if file else folder, 54321, -1)

    assert cache.read("kernel") is None


@ON_UNIX
def test_others_may_not_write_to_what_is_made_whatever_the_umask(tmp_path):
    before = os.umask(0o002)
    try:
        cache = KernelCache((tmp_path / "folder",), None, untidy)
        cache.write("kernel", b"code")
    finally:
        os.umask(before)

    assert cache.read("kernel") == b"code"


def test_a_link_to_a_private_folder_is_none(tmp_path):
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)

    assert is_private(mine)
    assert not is_private(link)
    assert not is_private(tmp_path / "absent")


def test_what_lasts_is_said_nothing_about_and_tidied_once(tmp_path):
    tidied = []
    cache = KernelCache((tmp_path / "not" / "yet",), None, tidied.append)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.write("one", b"1")
        cache.write("two", b"2")

    assert [cache.read("one"), cache.read("two"), cache.read("three")] == [b"1", b"2", None]
    assert sorted(path.name for path in (tmp_path / "not" / "yet").iterdir()) == ["one", "two"]
    assert tidied == [tmp_path / "not" / "yet"]


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_of_two_processes_that_lack_a_kernel_at_once_one_compiles_it(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", AT_ONCE, str(tmp_path), name],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]

    printed = [each.communicate()[0] for each in started]

    assert sorted(printed) == ["0\n", "1\n"]
    kept = [path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept == [".kernel"]


def test_a_lock_that_is_not_given_back_keeps_nobody_from_compiling(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "LOCK_S", 0.1)
    cache = KernelCache((tmp_path,), None, untidy)

    with cache.locked("a.kernel"), cache.locked("a.kernel"):
        cache.write("a.kernel", b"code")

    assert cache.read("a.kernel") == b"code"


def test_where_no_folder_takes_a_lock_there_is_none(tmp_path):
    (tmp_path / "file").touch()
    cache = KernelCache((tmp_path / "file" / "cache",), None, untidy)

    with cache.locked("a.kernel"):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
