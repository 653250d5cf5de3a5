"""Memory limits of control groups."""

import subprocess
import sys

import numpy as np
import pytest
from spaninfer_engine import ConfigError
from spaninfer_engine.backends.host_memory import available_bytes, cgroup_bytes, total_bytes
from spaninfer_engine.startup.build import shortage_named
from spaninfer_engine.startup.limits import refuse_beyond_machine
from spaninfer_host_limits import cgroup_folders


def group(folder, **files):
    """A control group; names of files have _ for the dot behind "memory"."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.", 1)).write_text(f"{text}\n")


def left(own, root):
    return cgroup_bytes(cgroup_folders("memory", own, root))


def test_a_group_leaves_its_limit_less_what_is_used_and_files_that_rest_are_free(tmp_path):
    stat = "anon 300\nfile 500\nactive_file 100\ninactive_file 400"
    group(tmp_path, memory_max=1000, memory_current=800, memory_stat=stat)

    assert left("0::/\n", tmp_path) == 600


def test_the_least_of_the_own_group_and_those_around_it_counts(tmp_path):
    group(tmp_path / "app", memory_max=1000, memory_current=100)
    group(tmp_path / "app" / "server", memory_max="max", memory_current=90)
    group(tmp_path / "app" / "server" / "worker", memory_max=2000, memory_current=80)

    assert left("0::/app/server/worker\n", tmp_path) == 900
    assert left("0::/app\n", tmp_path) == 900
    assert left("0::/other\n", tmp_path) is None


def test_more_than_the_limit_leaves_nothing(tmp_path):
    group(tmp_path, memory_max=1000, memory_current=1200)

    assert left("0::/\n", tmp_path) == 0


def test_version_1_has_a_tree_for_memory_alone(tmp_path):
    stat = "inactive_file 1\ntotal_inactive_file 50"
    group(
        tmp_path / "memory" / "docker",
        memory_limit_in_bytes=1000,
        memory_usage_in_bytes=300,
        memory_stat=stat,
    )

    assert left("4:cpu,cpuacct:/other\n3:memory:/docker\n", tmp_path) == 750


def test_this_machine_has_some_memory():
    assert available_bytes() > 1 << 20


LIMITED = """
import resource

import numpy
from spaninfer_engine.backends.host_memory import available_bytes, total_bytes
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print(available_bytes(), total_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_limited_address_space_leaves_what_is_not_mapped_yet():
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True
    )
    left, total = map(int, ran.stdout.split())

    assert total == 2 << 30
    assert 0 < left < (2 << 30) - (50 << 20)  # Python and NumPy are mapped


def test_a_machine_has_at_least_what_is_available():
    assert total_bytes() >= available_bytes()


def test_more_than_a_machine_has_is_refused_with_both_numbers():
    refuse_beyond_machine(8 << 30, total=8 << 30)
    refuse_beyond_machine(None, total=8 << 30)

    with pytest.raises(ConfigError, match=r"--memory is 9.0 GiB, and .* 8.0 GiB at most; lower it"):
        refuse_beyond_machine(9 << 30, total=8 << 30)


def test_memory_that_runs_out_while_loading_is_told_as_what_can_be_changed():
    with (
        pytest.raises(ConfigError, match=r"ran out .*\(Unable to allocate.*lower --memory"),
        shortage_named(),
    ):
        np.empty(1 << 60, np.uint8)
