"""Worker threads for functions of Python that release its lock most of the time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from spaninfer_host_limits import usable_cpus


def share(work: Callable[[], None], num_workers: int) -> None:
    """Call `work` on this thread and on up to num_workers - 1 workers.

    It takes tasks until none is left, and returns. A worker that the system starts late delays
    no other; what one raises is raised here.
    """
    workers = [_threads().submit(work) for _ in range(num_workers - 1)]
    work()
    for worker in workers:
        if not worker.cancel():
            worker.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, usable_cpus() - 1), thread_name_prefix="spaninfer-kernels")
