"""How cgroup texts become a number of CPUs."""

import os

import pytest
from spaninfer_kernels_cpu import threads, usable_cpus


@pytest.mark.parametrize(
    ("v2", "v1", "cpus"),
    [
        ("200000 100000\n", None, 2),
        ("150000 100000\n", None, 2),
        ("5000 100000\n", None, 1),
        ("max 100000\n", None, None),
        (None, ("400000\n", "100000\n"), 4),
        (None, ("-1\n", "100000\n"), None),
        (None, None, None),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cpus(v2, v1, cpus):
    assert threads._quota(v2, v1) == cpus


def test_a_file_that_is_not_there_sets_no_limit(tmp_path):
    assert threads._read(tmp_path / "cpu.max") is None


def test_this_process_may_use_between_one_and_all_cpus():
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
