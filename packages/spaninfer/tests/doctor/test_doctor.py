"""Findings of `spaninfer doctor`, on this machine and on faulty ones."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from spaninfer.doctor import Verdict
from spaninfer.doctor.caches import check_folder
from spaninfer.doctor.packages import compare_versions

OURS = (
    *("spaninfer", "spaninfer-serving", "spaninfer-engine", "spaninfer-kernels-cpu"),
    *("spaninfer-op-reference", "spaninfer-demo"),
)


def test_a_machine_in_order_gets_facts_and_an_answer(call):
    result = call("doctor")

    assert result.exit_code == 0, result.output
    assert f"Python      {platform.python_version()}" in result.stdout
    assert f"{len(os.sched_getaffinity(0))}" in result.stdout.split("usable")[0]
    assert "an API server, which answers" in result.stdout or len(os.sched_getaffinity(0)) == 1
    assert "bundled model on " in result.stdout.splitlines()[-1]


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
