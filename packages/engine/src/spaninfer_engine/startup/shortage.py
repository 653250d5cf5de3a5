"""Errors about a lack of host memory that name what the caller can change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spaninfer_engine.backends.host_memory import address_space_left, available_bytes
from spaninfer_engine.cache.memory_plan import gib
from spaninfer_engine.errors import ConfigError

ADDRESS_SPACE = 512 << 20
"""Bytes of address space that libraries, compiled kernels and stacks of threads take.

The bundled model ran in 500 MiB more than its command line had mapped, and in 450 no thread
started (Linux, two cores, 2026-12-01).
"""


def refuse_narrow_address_space() -> None:
    """Raise ConfigError where `ulimit -v` leaves less than `ADDRESS_SPACE`.

    Libraries in C++ and Rust, and LLVM, abort the process where memory ends: nothing could be said
    then (one run of five with 100 MiB, and one of hundreds with 10).
    """
    left = address_space_left()
    if left is not None and left < ADDRESS_SPACE:
        raise ConfigError(
            f"the address space of this process is limited (ulimit -v), and {left >> 20} MiB of it "
            f"are left; an engine takes {ADDRESS_SPACE >> 20} MiB at least: raise the limit"
        )


@contextmanager
def shortage_named() -> Iterator[None]:
    """Turn a MemoryError into a ConfigError that says what the caller can change."""
    try:
        yield
    except MemoryError as short:
        raise ConfigError(
            f"memory ran out while the model was loading ({short or 'no details'}); "
            f"{gib(available_bytes())} are left: lower --memory or --max-len, quantize weights, or "
            "raise the limit of this process (ulimit -v, the container's)"
        ) from short
