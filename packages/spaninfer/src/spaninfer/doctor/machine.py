"""CPUs, memory and limits of this machine, as the process may use them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from spaninfer_engine.tools import available_bytes, total_bytes
from spaninfer_host_limits import cpu_name, usable_cpus

from spaninfer.doctor.finding import Finding, Verdict
from spaninfer.threads import described_processes, num_api_servers

_SMALL_BYTES = 2 << 30
_FEW_FILES = 1024


def check_machine() -> Iterator[Finding]:
    """Yield CPUs, instruction set, processes of a server, memory and open files."""
    from spaninfer_kernels_cpu import active_level  # it imports Numba

    usable, present = usable_cpus(), os.cpu_count() or 1
    share = f"{usable}" if usable == present else f"{usable} of {present}"
    yield Finding("CPU", f"{cpu_name()}; {share} usable; kernels for {active_level().name}")
    yield Finding("server", described_processes(num_api_servers(None)))
    available, total = available_bytes(), total_bytes()
    seen = f"{available / 2**30:.1f} of {total / 2**30:.1f} GiB available"
    if available < _SMALL_BYTES:
        yield Finding("memory", seen, Verdict.NOTE, "--memory limits the KV cache")
    else:
        yield Finding("memory", seen)
    if (limit := _open_files()) is not None:
        yield _files(limit)


def _files(limit: int) -> Finding:
    """Return whether a server can have many connections."""
    seen = f"{limit:,} at most"
    if limit <= _FEW_FILES:
        way_out = "each connection of a server takes one: raise the hard limit (ulimit -Hn)"
        return Finding("open files", seen, Verdict.NOTE, way_out)
    return Finding("open files", seen)


def _open_files() -> int | None:
    """Return the hard limit, up to which a server raises its own; None where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard
