"""Ordinary clients: they send a short prompt, read the stream to its end, and send the next."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from spaninfer.bench import process_usage
from spaninfer.bench.soak.client import ANSWER_S, LOST, Tally, Target, read_chunks, read_head

CLIENTS = 32
TOKENS = 16
PAUSE_S = 1.0  # between two requests of a client, on average: people read


@dataclass(slots=True)
class Waits:
    """Waiting times of ordinary clients in seconds, and how their requests ended."""

    first: list[float] = field(default_factory=list)  # until the first event
    whole: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)  # until then, ready without a CPU, if known
    tally: Tally = field(default_factory=Tally)


def percentile(values: Sequence[float], share: float) -> float:
    """Return what `share` percent of some times are not above; NaN without any.

    >>> percentile([1.0, 2.0, 3.0], 50)
    2.0
    """
    return float(np.percentile(values, share)) if values else float("nan")


async def ordinary_clients(target: Target, seconds: float) -> Waits:
    """Return what `CLIENTS` clients met in that many seconds; what they began then is finished."""
    waits = Waits()
    end = perf_counter() + seconds
    clients = [_client(target, number, end, waits) for number in range(CLIENTS)]
    await asyncio.gather(*clients)
    return waits


async def _client(target: Target, number: int, end: float, waits: Waits) -> None:
    pauses = random.Random(number)
    for turn in itertools.count():
        # Were pauses of one length, clients that one step answered would ask again together: a
        # single stall made half of them a burst for the rest of a phase, and the 99th percentile
        # theirs (measured: 8 to 12 requests within 10 ms, each with the wait of all).
        await asyncio.sleep(pauses.expovariate(1.0 / PAUSE_S))
        if perf_counter() >= end:
            return
        body = {
            "messages": [
                {"role": "user", "content": f"Tell me story {turn} about {number} foxes."}
            ],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        waits.tally.sent += 1
        try:
            async with asyncio.timeout(ANSWER_S):
                status = await _answered(target, target.post(body, "/v1/chat/completions"), waits)
        except TimeoutError:
            status = LOST
        except (OSError, EOFError):
            status = "cut"
        waits.tally.statuses[status] += 1


def _wait_s() -> float | None:
    return process_usage.cpu_wait_s(os.getpid())


async def _answered(target: Target, request: bytes, waits: Waits) -> str:
    """Send a request and read its stream; return the status, or "cut" where the end is missing."""
    begin, begin_wait_s = perf_counter(), _wait_s()
    async with target.connect() as (reader, writer):
        writer.write(request)
        status, _ = await read_head(reader)
        if status != "200":
            return status
        said = b""
        is_first = True
        async for chunk in read_chunks(reader):
            if is_first and b'"content":"' in chunk and b'"role"' not in chunk:
                waits.first.append(perf_counter() - begin)
                if begin_wait_s is not None and (wait_s := _wait_s()) is not None:
                    waits.own.append(wait_s - begin_wait_s)
                is_first = False
            said = said[-200:] + chunk
    waits.whole.append(perf_counter() - begin)
    return status if said.endswith(b"data: [DONE]\n\n") and b'"error"' not in said else "cut"
