"""Usable CPUs of a process under affinity masks and cgroup quotas."""

import os
from pathlib import Path

import pytest
from processes import printed_by
from spaninfer_host_limits import cgroup_folders, cgroup_quota, cpu_count, usable_cpus

V1 = "9:name=systemd:/a\n4:cpu,cpuacct:{path}\n3:memory:/a/b\n"

ASK = """
from spaninfer_host_limits import usable_cpus
from spaninfer_kernels_cpu.runtime.thread_pool import ThreadPool
with ThreadPool() as thread_pool:
    print(usable_cpus(), thread_pool.num_threads)
"""


def quota(own: str, root: Path) -> int | None:
    return cgroup_quota(cgroup_folders("cpu", own, root))


def v2(folder: Path, **limits: str) -> Path:
    """A tree of version 2; names say folders, with _ for the root and __ between two."""
    for name, text in limits.items():
        place = folder / name.strip("_").replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cpu.max").write_text(text + "\n")
    return folder


def v1(folder: Path, microseconds: str) -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "cpu.cfs_quota_us").write_text(microseconds + "\n")
    (folder / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    return folder


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("max 100000", None),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cpus(tmp_path, text, cpus):
    assert quota("0::/\n", v2(tmp_path, _=text)) == cpus


def test_the_smallest_quota_from_the_own_cgroup_to_the_root_counts(tmp_path):
    folder = v2(tmp_path, user="600000 100000", user__us="max 100000", user__us__app="8 1")

    assert quota("0::/user/us/app\n", folder) == 6
    assert quota("0::/user/us\n", folder) == 6
    assert quota("0::/other\n", folder) is None

    v2(tmp_path, user__us__app="100000 100000")
    assert quota("0::/user/us/app\n", folder) == 1


@pytest.mark.parametrize("own", ["0::/docker/0123\n", "0::/../../slice\n", ""])
def test_a_container_whose_path_is_not_mounted_has_the_quota_of_the_root(tmp_path, own):
    assert quota(own, v2(tmp_path, _="300000 100000")) == 3


@pytest.mark.parametrize("path", ["/", "/docker/0123"])
@pytest.mark.parametrize(("microseconds", "cpus"), [("400000", 4), ("-1", None)])
def test_version_1_has_a_tree_for_cpus_alone(tmp_path, path, microseconds, cpus):
    assert quota(V1.format(path=path), v1(tmp_path, microseconds)) == cpus


def test_where_there_are_no_cgroups_there_is_no_quota(tmp_path):
    assert quota("", tmp_path) is None
    assert quota("0::/user\n", tmp_path / "nowhere") is None


def test_a_quota_below_the_affinity_decides_and_one_above_does_not(monkeypatch):
    monkeypatch.setattr(cpu_count, "_affinity", lambda: 4)

    found = []
    for quota in (2, 9, None):
        monkeypatch.setattr(cpu_count, "cgroup_quota", lambda *_, quota=quota: quota)
        found.append(usable_cpus.__wrapped__())

    assert found == [2, 4, 4]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_process_that_is_kept_to_one_cpu_has_one_thread():
    program = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n{ASK}"

    assert printed_by(program, {}) == "1 1"


def test_this_process_may_use_between_one_and_all_cpus():
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
