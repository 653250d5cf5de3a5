"""The slot of an engine's core: the core there is now, or none while the engine sleeps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Condition, Event, Lock
from typing import NoReturn, TypeAlias

from spaninfer_engine.config import EngineConfig
from spaninfer_engine.core.assembly import core_of
from spaninfer_engine.core.embedder import Embedder
from spaninfer_engine.core.loop import Core
from spaninfer_engine.core.stats import EngineState, EngineStats
from spaninfer_engine.errors import (
    ConfigError,
    EngineAsleep,
    EngineClosed,
    EngineUnavailable,
    WeightsTimeout,
    WrongThread,
)
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.output.relay import TokenRelay
from spaninfer_engine.request.request import FinishReason, Request
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.startup.same_model import check_same_model

AnyCore: TypeAlias = "Core | Embedder | Asleep"


class Asleep:
    """Stands where a core was: refuses requests, and keeps the core's last numbers."""

    def __init__(self, last: EngineStats, context: int) -> None:
        self.state, self.context = EngineState.ASLEEP, context
        self._last = replace(last, state=self.state, running=0, waiting=0, spans=(), offload=None)
        self._is_over = Event()

    def submit(
        self,
        request: Request,  # noqa: ARG002
        queue: ResultQueue | TokenRelay,  # noqa: ARG002
    ) -> NoReturn:
        """Refuse a request."""
        raise self.refusal()

    def refusal(self) -> EngineUnavailable:
        """Return why nothing is taken."""
        if self.state is EngineState.CLOSED:
            return EngineClosed("the engine is closed and takes no more requests")
        return EngineAsleep()

    def stop(self, seq_ids: tuple[int, ...], reason: FinishReason) -> None:
        """Nothing runs."""

    def stats(self, *, model: str, uptime_s: float) -> EngineStats:
        """Return the numbers of the core before."""
        return replace(self._last, model=model, state=self.state, uptime_s=uptime_s)

    def close(self, drain_s: float = 0.0, patience_s: float | None = None) -> None:  # noqa: ARG002
        """Nothing is held."""
        self.state = EngineState.CLOSED
        self._is_over.set()

    def wait_over(self) -> None:
        """Wait until it is closed, or a core is there again."""
        self._is_over.wait()

    def drop(self) -> None:
        """Nothing is held; whoever waits for the end looks again."""
        self._is_over.set()


class CoreSlot:
    """The core of an engine, which may be given up and built again, with other weights as well.

    What the engine tells of its model stays that of the start: tokenizer, template, ends of
    answers, context. Changes take turns.
    """

    def __init__(self, parts: Parts) -> None:
        self.core: AnyCore = core_of(parts)
        self._source = parts.asked  # None: the parts were made elsewhere
        self._model, self._resolved = parts.model, parts.resolved
        self._texts = {
            name: getattr(parts, name) for name in ("tokenizer", "template", "sampling", "end_ids")
        }
        self._context = self.core.context
        self._changing = Lock()
        self._lock = Condition()  # over what follows and the core; never held for long
        self._is_closed = False
        self._num_callers = 0  # of changes and checks

    def check_thread(self, call: str) -> None:
        """Raise WrongThread for a call that waits for the core, in one of its own threads."""
        core = self.core
        if isinstance(core, Core) and core.is_own_thread:
            raise WrongThread(call)

    def sleep(self, drain_s: float) -> None:
        """Give weights and KV cache up; `Engine.sleep` says more."""
        with self._waited_for(), self._changing:
            self._readable()
            if not isinstance(self.core, Asleep):
                self._empty(drain_s)

    def wake_up(self) -> None:
        """Build a core again; the engine sleeps on where that fails."""
        with self._waited_for(), self._changing:
            self._check_open()
            if isinstance(self.core, Asleep):
                self._fill(self._readable())

    def update(self, model: Path, drain_s: float) -> None:
        """Take other weights of the same model; `Engine.update_weights` says more."""
        with self._waited_for(), self._changing:
            before, source = self._readable(), self._checked(model)
            if isinstance(self.core, Asleep):
                self._source = source
                return
            self._empty(drain_s)
            try:
                self._fill(source)
            except EngineClosed:
                raise
            except Exception:
                self._fill(before)
                raise

    def check(self, model: Path) -> None:
        """Raise where other weights are not of the same model."""
        with self._waited_for():
            self._checked(model)

    def wait_over(self) -> None:
        """Wait until the engine is closed or has failed."""
        while True:
            core = self.core
            core.wait_over()
            with self._changing:  # behind what has ended it
                if core is self.core:
                    return

    def close(self, drain_s: float, patience_s: float | None) -> None:
        """Close the core; a change that is under way ends with EngineClosed.

        Raises WeightsTimeout where it does not within `patience_s`.
        """
        with self._lock:
            self._is_closed = True
            core = self.core
        core.close(drain_s, patience_s)
        with self._lock:
            has_ended = self._lock.wait_for(lambda: not self._num_callers, patience_s)
        if patience_s is not None and not has_ended:
            raise WeightsTimeout(patience_s)

    def drop(self) -> None:
        """Give everything up; called last, in any thread, so without a lock."""
        self._is_closed = True
        self.core.drop()

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Have `close` wait for a block, in which files may be read."""
        with self._lock:
            self._num_callers += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_callers -= 1
                self._lock.notify_all()

    def _checked(self, model: Path) -> EngineConfig:
        """Return how other weights are read; raise where they are not of the same model."""
        source = replace(
            self._readable(),
            model=model,
            weights="checkpoint",
            dtype=self._resolved.dtype,
            served_name=self._resolved.name,
        )
        check_same_model(source, self._model)
        return source

    def _readable(self) -> EngineConfig:
        """Return where the weights can be read again; raise where none can be."""
        if self._is_closed:
            raise EngineClosed("the engine is closed")
        if self._source is None:
            raise ConfigError(
                "this engine was built from components, whose weights cannot be read "
                "again; load it from a model's folder to let it sleep or update its "
                "weights"
            )
        return self._source

    def _check_open(self) -> None:
        """Raise EngineClosed for an engine that was closed or has failed; asked in one's turn."""
        state = EngineState.CLOSED if self._is_closed else self.core.state
        if state not in (EngineState.RUNNING, EngineState.ASLEEP):
            raise EngineClosed(f"the engine is {state.value}")

    def _empty(self, drain_s: float) -> None:
        self._check_open()
        core = self.core
        assert not isinstance(core, Asleep), "it was asked"
        core.close(drain_s, for_sleep=True)
        asleep = Asleep(core.stats(model=self._resolved.name, uptime_s=0.0), self._context)
        with self._lock:
            if self._is_closed or core.failure is not None:
                raise EngineClosed("the engine was closed in the meantime, or has failed")
            self.core = asleep
        del core
        gc.collect()  # a core and its threads know each other

    def _fill(self, source: EngineConfig) -> None:
        core = core_of(replace(build(source), **self._texts))
        if core.context < self._context:
            context = core.context
            core.close()
            raise ConfigError(
                f"free memory allows a context of {context} tokens, and the engine had "
                f"{self._context}; free memory, then wake it up"
            )
        with self._lock:
            is_closed, before = self._is_closed, self.core
            if not is_closed:
                self.core, self._source = core, source
        if is_closed:
            core.close()
            raise EngineClosed("the engine was closed while its weights were read")
        before.drop()  # not closed: a caller that found it there is refused by one that slept
