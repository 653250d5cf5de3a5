"""Errors about a lack of host memory that name what the caller can change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spaninfer_engine.backends.host_memory import available_bytes
from spaninfer_engine.cache.memory_plan import gib
from spaninfer_engine.errors import ConfigError


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
