"""Findings of `spaninfer doctor`, on this machine and on faulty ones."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from spaninfer.doctor import Verdict
from spaninfer.doctor.caches import check_folder, check_kernels
from spaninfer.doctor.packages import compare_versions
from spaninfer_kernels_cpu import CacheReport

OURS = (
    *("spaninfer", "spaninfer-serving", "spaninfer-engine", "spaninfer-kernels-cpu"),
    *("spaninfer-op-reference", "spaninfer-demo"),
)


def test_a_machine_in_order_gets_facts_and_an_answer(call):
    result = call("doctor")

    assert result.exit_code == 0, result.output
    assert "CPU kernels " in result.stdout
    assert f"Python      {platform.python_version()}" in result.stdout
    assert f"{len(os.sched_getaffinity(0))}" in result.stdout.split("usable")[0]
    assert "an API server, which answers" in result.stdout or len(os.sched_getaffinity(0)) == 1
    assert "bundled model on " in result.stdout.splitlines()[-1]


def test_the_cache_of_cpu_kernels_is_shown_where_it_is(tmp_path):
    command = [sys.executable, "-c", CHECK]
    places = {tmp_path / "cache": "ok", tmp_path / "file" / "cache": "note"}
    (tmp_path / "file").write_text("")
    for place, verdict in places.items():
        env = os.environ | {"NUMBA_CACHE_DIR": str(place), "TMPDIR": str(tmp_path)}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)

        found, seen, way_out = ran.stdout.splitlines()
        assert found == verdict, ran.stdout
        if verdict == "ok":
            assert seen.startswith(f"{place}/spaninfer_kernels_cpu_")
            assert way_out == ""
        else:
            assert seen.startswith(f"{tmp_path}/spaninfer-")
            assert f"{place}/spaninfer_kernels_cpu_" in seen
            assert os.strerror(errno.ENOTDIR) in seen
            assert "NUMBA_CACHE_DIR" in way_out


CHECK = """
from spaninfer.doctor.caches import check_kernels
from spaninfer_kernels_cpu import kernel_cache_report
found = check_kernels(kernel_cache_report())
print(found.verdict.value, found.seen, found.way_out, sep="\\n")
"""


@pytest.mark.parametrize(("num_bytes", "said"), [(3 << 20, "3.0 MiB that are read"), (0, "memory")])
def test_a_cache_that_takes_no_files_is_a_note(num_bytes, said):
    report = CacheReport(None, False, num_bytes, {Path("/cache"): "Read-only file system"})

    found = check_kernels(report)

    assert found.verdict is Verdict.NOTE
    assert said in found.seen
    assert "/cache: Read-only file system" in found.seen
    assert "NUMBA_CACHE_DIR" in found.way_out


def test_packages_of_one_release_fit_together():
    found = compare_versions(dict.fromkeys(OURS, "0.1.0") | {"span-attention": "0.1.2"})

    assert (found.verdict, found.seen) == (Verdict.OK, "7 of release 0.1")


@pytest.mark.parametrize(
    ("versions", "way_out"),
    [
        (dict.fromkeys(OURS[1:], "0.1.0"), "install spaninfer: "),
        (dict.fromkeys(OURS, "0.1.0") | {"spaninfer-engine": "0.2.0"}, "different releases"),
        ({}, "install spaninfer, spaninfer-serving"),
    ],
)
def test_packages_that_do_not_fit_are_wrong(versions, way_out):
    found = compare_versions(versions)

    assert found.verdict is Verdict.WRONG
    assert way_out in found.way_out


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    found = check_folder("models", tmp_path / "a" / "b", "HF_HOME")

    assert found.verdict is Verdict.OK
    assert str(tmp_path / "a" / "b") in found.seen


def test_a_folder_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")

    found = check_folder("models", tmp_path / "file" / "hub", "HF_HOME")

    assert found.verdict is Verdict.NOTE
    assert found.seen == f"{tmp_path / 'file' / 'hub'} cannot be written"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder that nobody can write is Linux's")
def test_a_folder_that_cannot_be_written_names_the_variable():
    found = check_folder("models", Path("/proc/none"), "HF_HOME")

    if os.access("/proc", os.W_OK):  # as root, who is told that everything can be
        pytest.skip("this user may write everywhere")
    assert found.verdict is Verdict.NOTE
    assert "HF_HOME" in found.way_out
