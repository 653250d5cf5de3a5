"""The host of a process and its limits there: the CPU, usable CPUs, and control groups.

It needs the standard library alone, and is a package beside the CPU kernels because engines on
other devices ask too: importing the kernels imports Numba, which takes a second.
"""

from spaninfer_host_limits.cgroups import cgroup_folders, text_of
from spaninfer_host_limits.cpu_count import cgroup_quota, usable_cpus
from spaninfer_host_limits.cpu_name import cpu_name

__all__ = ["cgroup_folders", "cgroup_quota", "cpu_name", "text_of", "usable_cpus"]
