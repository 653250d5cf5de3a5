"""Requested kernels: refused where they are not compiled yet, or recorded instead of compiled.

So all that a piece of code needs can be compiled side by side, before it runs:

    try:
        with cached_only():
            step()                # a second start ends here
    except NotCompiled:
        with recording_kernels() as requests:
            step()                # prepares its kernels and launches them; they do nothing
        compile_all(requests, on_progress)
        step()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from spaninfer_kernel_launch.cache import FileCache
from spaninfer_kernel_launch.source import Source
from spaninfer_kernel_launch.variant import Variant

P = ParamSpec("P")
T = TypeVar("T")

EMPTY_KERNEL: Final = Variant.of("nothing", Source(__package__, "csrc/nothing.cu"), {})
"""The kernel that is launched in place of those that are recorded."""


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """A request for a kernel: its variant, the architecture, and the cache that keeps it."""

    variant: Variant
    arch: str
    cache: FileCache | None


_cached_only: ContextVar[bool] = ContextVar("_cached_only", default=False)
_recorded: ContextVar[set[KernelRequest] | None] = ContextVar("_recorded", default=None)
recorded: Final = _recorded.get
"""Returns the requests recorded so far; None where kernels are compiled."""


@contextmanager
def cached_only() -> Iterator[None]:
    """Raise NotCompiled where this thread requests a kernel that its cache does not have."""
    token = _cached_only.set(True)
    try:
        yield
    finally:
        _cached_only.reset(token)


def is_cached_only() -> bool:
    """Return whether kernels that are not cached are refused at the moment."""
    return _cached_only.get()


@contextmanager
def recording_kernels() -> Iterator[set[KernelRequest]]:
    """Record the kernels that this thread requests; none is compiled, and launches do nothing.

    Launches that were prepared meanwhile do nothing afterwards either: forget them.
    """
    requests: set[KernelRequest] = set()
    token = _recorded.set(requests)
    try:
        yield requests
    finally:
        _recorded.reset(token)


def prepared_once(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that caches preparations for the latest `maxsize` arguments.

    While kernels are recorded it keeps nothing, and gives nothing that it has kept before. The
    arguments are given by position, which is faster.
    """

    def decorate(prepare: Callable[P, T]) -> Callable[P, T]:
        kept, anew = lru_cache(maxsize)(prepare), cast("Callable[..., T]", prepare)

        @wraps(prepare)
        def prepare_once(*arguments: Any) -> T:
            if recorded() is None:
                return kept(*arguments)
            return anew(*arguments)

        prepare_once.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
        return prepare_once  # type: ignore[return-value]

    return decorate


def record_request(request: KernelRequest) -> bool:
    """Record a request where kernels are being recorded; return whether they are."""
    requests = recorded()
    if requests is not None:
        requests.add(request)
    return requests is not None
