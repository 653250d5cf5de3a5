"""Attacks on a server: each repeats until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from spaninfer.bench.soak.client import Tally, Target

WORDS = "The quick brown fox jumps over the lazy dog and tells nobody about it. "
SILENCE_S = 5.0  # for which silent connections are held
BETWEEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Attacker:
    """Somebody without a key, and somebody with one, who can kill the server's processes."""

    stranger: Target
    member: Target
    server_pid: int


Attack = Callable[[Attacker, Tally], Awaitable[None]]


async def pipelining(attacker: Attacker, tally: Tally) -> None:
    """4 connections that send requests without a key and never read an answer."""
    request = attacker.stranger.head("GET", "/", None) * 256

    async def one() -> None:
        async with attacker.stranger.connect() as (_, writer):
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_S):
                    while True:
                        writer.write(request)
                        tally.sent += 256
                        await writer.drain()

    await asyncio.gather(*(_or_cut(one(), tally) for _ in range(4)))


async def open_bodies(attacker: Attacker, tally: Tally) -> None:
    """64 bodies without a key that lack their last byte."""
    await _hold(attacker.stranger, 64, attacker.stranger.head("POST", "/health", 1 << 20), tally)


async def connections(attacker: Attacker, tally: Tally) -> None:
    """200 connections that say nothing."""
    await _hold(attacker.stranger, 200, b"", tally)


async def bursts(attacker: Attacker, tally: Tally) -> None:
    """256 ordinary requests at once: 1.2 KB of text, one token."""
    request = attacker.member.post({"prompt": (WORDS * 20)[:1200], "max_tokens": 1})
    await asyncio.gather(*(attacker.member.ask(request, tally) for _ in range(256)))
    await asyncio.sleep(10 * BETWEEN_S)


async def long_bodies(attacker: Attacker, tally: Tally) -> None:
    """16 texts of 2 MB, whose clients leave after a while."""
    said = {"role": "assistant", "content": WORDS * (2_000_000 // len(WORDS))}
    body: Mapping[str, Any] = {"messages": [said, {"role": "user", "content": "And?"}]}
    request = attacker.member.post(dict(body), "/v1/chat/completions")
    await _hold(attacker.member, 16, request, tally)


async def echoes(attacker: Attacker, tally: Tally) -> None:
    """Prompts of 2,000 tokens with the log-probabilities of the top 20 tokens in each place."""
    body = {"prompt": [100 + i % 900 for i in range(2000)], "echo": True, "logprobs": 20}
    await attacker.member.ask(attacker.member.post(body | {"max_tokens": 0}), tally)
    await attacker.member.ask(attacker.member.post(body | {"n": 128, "max_tokens": 0}), tally)
    await asyncio.sleep(5 * BETWEEN_S)


async def priorities(attacker: Attacker, tally: Tally) -> None:
    """8 requests at a time that want to be first."""
    request = attacker.member.post({"prompt": WORDS, "max_tokens": 64, "priority": -100})
    await asyncio.gather(*(attacker.member.ask(request, tally) for _ in range(8)))
    await asyncio.sleep(BETWEEN_S)


async def slow_readers(attacker: Attacker, tally: Tally) -> None:
    """4 long streams that are not read."""
    body = {"prompt": WORDS, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    await _hold(attacker.member, 4, attacker.member.post(body), tally)


ATTACKS: Final[Mapping[str, Attack]] = {
    "pipelining": pipelining,
    "open_bodies": open_bodies,
    "connections": connections,
    "bursts": bursts,
    "long_bodies": long_bodies,
    "echoes": echoes,
    "priorities": priorities,
    "slow_readers": slow_readers,
}


async def repeated(attack: Attack, attacker: Attacker, tally: Tally) -> None:
    """Repeat an attack until it is cancelled."""
    while True:
        await attack(attacker, tally)
        await asyncio.sleep(0)


async def _hold(target: Target, count: int, data: bytes, tally: Tally) -> None:
    """Open connections, send the same on each, and leave after a while without reading."""
    async with AsyncExitStack() as stack:
        for _ in range(count):
            tally.sent += 1
            await _or_cut(_send(stack, target, data), tally)
        await asyncio.sleep(SILENCE_S)


async def _send(stack: AsyncExitStack, target: Target, data: bytes) -> None:
    _, writer = await stack.enter_async_context(target.connect())
    writer.write(data)


async def _or_cut(work: Awaitable[None], tally: Tally) -> None:
    """Note where the server ends a connection, or takes none."""
    try:
        await work
    except OSError:
        tally.statuses["cut"] += 1
