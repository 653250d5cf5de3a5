"""`spaninfer doctor`: what is installed, what is wrong, what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from spaninfer.doctor.caches import check_caches
from spaninfer.doctor.finding import Finding, Verdict
from spaninfer.doctor.gpu import check_gpu
from spaninfer.doctor.machine import check_machine
from spaninfer.doctor.packages import check_packages
from spaninfer.doctor.trial import check_answer

__all__ = ["Finding", "Verdict", "examine"]


def examine() -> Iterator[Finding]:
    """Yield what is found, one by one: the last takes seconds."""
    yield from check_packages()
    yield from check_machine()
    yield from check_gpu()
    yield from check_caches()
    yield check_answer()
