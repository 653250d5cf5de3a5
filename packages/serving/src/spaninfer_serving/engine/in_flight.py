"""The requests that are being answered: who they are, how to end them, and what keys may use.

Counts follow the streams of the engine: one that is no longer referenced is over, in whatever way.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol
from weakref import ref

from spaninfer_serving.admission.keys import KeyLimits
from spaninfer_serving.wire.errors import Problem

WINDOW_S = 60.0
LOOK_AGAIN_S = 0.02


@dataclass(slots=True)
class Allowance:
    """So much a minute: used up at once or over time, and coming back steadily."""

    per_minute: int
    left: float
    at_s: float

    def refill(self, now_s: float) -> None:
        """Give back what has come since the last time."""
        come = (now_s - self.at_s) * self.per_minute / WINDOW_S
        self.left, self.at_s = min(self.left + come, self.per_minute), now_s

    def wait_s(self, needed: float) -> float:
        """Return how long it takes until so much is there."""
        return max(0.0, (needed - self.left) * WINDOW_S / self.per_minute)


class KeyMeter:
    """The usage of one key."""

    def __init__(self, limits: KeyLimits) -> None:
        now_s = monotonic()
        self.num_running = 0
        self._most = limits.concurrent_requests
        self._requests = _allowance(limits.requests_per_minute, now_s)
        self._tokens = _allowance(limits.tokens_per_minute, now_s)

    def admit(self, num_tokens: int, now_s: float) -> None:
        """Count a request with that many tokens of prompts; Problem 429 where it has to wait.

        Tokens of answers are counted when they are known: a key may owe some, and waits then.
        """
        if self._most is not None and self.num_running >= self._most:
            raise _limited(f"{self._most} concurrent requests", 1.0)
        for allowance, needed, unit in (
            (self._requests, 1.0, "requests"),
            (self._tokens, float(num_tokens), "tokens"),
        ):
            if allowance is not None:
                allowance.refill(now_s)
                # A prompt that is larger than a minute's share passes when all of it is there.
                wait_s = allowance.wait_s(min(needed, allowance.per_minute))
                if wait_s > 0:
                    raise _limited(f"{allowance.per_minute} {unit} per minute", wait_s)
        for allowance, needed in ((self._requests, 1.0), (self._tokens, float(num_tokens))):
            if allowance is not None:
                allowance.left -= needed

    def charge(self, num_tokens: int) -> None:
        """Count tokens of an answer."""
        if self._tokens is not None:
            self._tokens.left -= num_tokens


def _allowance(per_minute: int | None, now_s: float) -> Allowance | None:
    return None if per_minute is None else Allowance(per_minute, float(per_minute), now_s)


def _limited(limit: str, wait_s: float) -> Problem:
    return Problem(
        429,
        f"this key is limited to {limit}; try again later",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(max(1, math.ceil(wait_s)))},
    )


class Sampled(Protocol):
    """The tokens of a request."""

    @property
    def num_output_tokens(self) -> int:
        """The number of tokens that its choices have sampled so far."""
        ...


class Running(Protocol):
    """A prompt that is being answered, as long as anybody holds it."""

    @property
    def handle(self) -> Sampled:
        """The request of the engine."""
        ...

    def stop(self) -> None:
        """End it; what it has produced can still be read."""
        ...

    def close(self) -> None:
        """End it, and forget what it has produced."""
        ...


@dataclass(slots=True)
class _Flight:
    """One HTTP request, and the streams of its prompts that are still held."""

    account: str
    streams: list[ref[Running]] = field(default_factory=list)
    num_open: int = 0


class InFlight:
    """The requests that generate; to be used by the tasks of one event loop."""

    def __init__(self, limits: Mapping[str, KeyLimits]) -> None:
        """Take the limits of accounts that have some."""
        self._meters = {account: KeyMeter(each) for account, each in limits.items()}
        self._flights: dict[str, list[_Flight]] = {}  # by id: clients may give one to several
        # What is over, noted by whichever thread dropped it: the garbage collector runs in any.
        self._over: deque[tuple[str, _Flight, Sampled]] = deque()

    def __len__(self) -> int:
        """Return how many requests there are."""
        self._settle()
        return sum(map(len, self._flights.values()))

    def admit(self, account: str, num_tokens: int) -> None:
        """Raise Problem 429 where a key has used what it may; else count a request of its."""
        self._settle()
        meter = self._meters.get(account)
        if meter is not None:
            meter.admit(num_tokens, monotonic())

    def add(self, request_id: str, account: str, streams: Sequence[Running]) -> None:
        """Count a request as running as long as anybody holds one of its streams."""
        flight = _Flight(account, num_open=len(streams))
        self._flights.setdefault(request_id, []).append(flight)
        if meter := self._meters.get(account):
            meter.num_running += 1
        for stream in streams:
            over = (request_id, flight, stream.handle)
            flight.streams.append(ref(stream, partial(self._note_over, over)))

    def abort(self, request_id: str) -> bool:
        """End a request, whose answer keeps what it has; False where there is none of this id."""
        self._settle()
        flights = self._flights.get(request_id, ())
        for flight in flights:
            for each in flight.streams:
                if (stream := each()) is not None:
                    stream.stop()
        return bool(flights)

    def abort_all(self) -> list[str]:
        """End every request; return their ids."""
        self._settle()
        return [request_id for request_id in list(self._flights) if self.abort(request_id)]

    async def wait_idle(self) -> None:
        """Wait until no request is left."""
        while len(self):
            await asyncio.sleep(LOOK_AGAIN_S)

    def _note_over(self, over: tuple[str, _Flight, Sampled], _: object) -> None:
        self._over.append(over)

    def _settle(self) -> None:
        while self._over:
            self._end(*self._over.popleft())

    def _end(self, request_id: str, flight: _Flight, handle: Sampled) -> None:
        meter = self._meters.get(flight.account)
        if meter is not None:
            meter.charge(handle.num_output_tokens)
        flight.num_open -= 1
        if flight.num_open:
            return
        flight.streams.clear()  # each holds what holds the flight
        if meter is not None:
            meter.num_running -= 1
        flights = self._flights[request_id]
        flights.remove(flight)
        if not flights:
            del self._flights[request_id]
