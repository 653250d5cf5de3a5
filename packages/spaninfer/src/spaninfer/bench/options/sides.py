"""Targets of the options benchmark: an engine in this process, or a server in another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any, Final, Protocol

from spaninfer_engine import ConfigError, Engine, SamplingParams
from spaninfer_engine.tools import complete

from spaninfer.bench import process_usage
from spaninfer.bench.soak.client import Target, read_chunks, read_head

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its prompt, and fields of SamplingParams; `has_option` says whether more of them
    than others have.
    """

    prompt: TokenIds
    fields: Mapping[str, Any]
    has_option: bool


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of a batch: until the last request without the option had ended, until all had, and
    of the CPUs.
    """

    plain_s: float
    all_s: float
    cpu_s: float


class Side(Protocol):
    """Answers batches of requests that start at once."""

    def spent(self, batch: Sequence[Ask]) -> Spent:
        """Answer a batch; raises RequestError or ConfigError where a request is refused."""
        ...


@dataclass(frozen=True, slots=True)
class EngineSide:
    """An engine in this process."""

    engine: Engine

    def spent(self, batch: Sequence[Ask]) -> Spent:
        """Answer a batch through `Engine.start_request`."""
        samplings = [SamplingParams(**ask.fields) for ask in batch]
        begin, cpu = perf_counter(), process_time()
        handles = [
            self.engine.start_request(ask.prompt, sampling)[0]
            for ask, sampling in zip(batch, samplings, strict=True)
        ]
        ends = {}
        for has_option in (False, True):
            for ask, handle in zip(batch, handles, strict=True):
                if ask.has_option is has_option:
                    complete(handle)
            ends[has_option] = perf_counter()
        return Spent(ends[False] - begin, ends[True] - begin, process_time() - cpu)


_WIRE: Final = {"no_repeat_ngram": "no_repeat_ngram_size"}
"""Fields of SamplingParams that have another name in a body."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    """A server on loopback, whose answers are streamed."""

    target: Target
    pid: int

    def spent(self, batch: Sequence[Ask]) -> Spent:
        """Answer a batch through POST /v1/completions, each request on a connection of its own."""
        return asyncio.run(self._spent(batch))

    async def _spent(self, batch: Sequence[Ask]) -> Spent:
        begin, cpu = perf_counter(), self._cpu_s()
        ends = await asyncio.gather(*(self._answered(body_of(ask)) for ask in batch))
        plain = [end for end, ask in zip(ends, batch, strict=True) if not ask.has_option]
        cpu_s = self._cpu_s() - cpu
        return Spent(max(plain, default=begin) - begin, max(ends) - begin, cpu_s)

    def _cpu_s(self) -> float:
        """Return the CPU time of the server's processes so far: supervisor, engine, API servers."""
        return sum(map(process_usage.cpu_s, process_usage.tree(self.pid)))

    async def _answered(self, body: dict[str, Any]) -> float:
        """Read a stream to its end; return when that was."""
        async with self.target.connect() as (reader, writer):
            writer.write(self.target.post(body))
            status, headers = await read_head(reader)
            if status != "200":
                refusal = await reader.readexactly(int(headers["content-length"]))
                raise ConfigError(f"the server refused a request: {refusal.decode()}")
            said = b""
            async for chunk in read_chunks(reader):
                said = chunk
        assert said.endswith(b"data: [DONE]\n\n"), said
        return perf_counter()


def body_of(ask: Ask) -> dict[str, Any]:
    """Return the body of a request; log-probabilities of prompts are those of an echo.

    >>> body_of(Ask((5, 6), {"top_p": 0.9, "prompt_logprobs": 2}, has_option=True))
    {'prompt': (5, 6), 'stream': True, 'top_p': 0.9, 'echo': True, 'logprobs': 2}
    """
    named = {_WIRE.get(name, name): value for name, value in ask.fields.items()}
    if (count := named.pop("prompt_logprobs", None)) is not None:
        named |= {"echo": True, "logprobs": count}
    return {"prompt": ask.prompt, "stream": True, **named}
