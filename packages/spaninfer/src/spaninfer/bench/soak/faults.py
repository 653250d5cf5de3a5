"""Requests at fault, clients that break off, killed processes: each until it is cancelled."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from spaninfer.bench import process_usage
from spaninfer.bench.soak.attacks import BETWEEN_S, WORDS, Attack, Attacker
from spaninfer.bench.soak.client import Tally, read_head

if sys.platform == "linux":
    import resource

KILL_EVERY_S: Final = 30.0
CRASH_EVERY_S: Final = 120.0  # a server is restarted 3 times within 300 s, and no more
DISK_EVERY_S: Final = 40.0
DISK_FULL_S: Final = 10.0
STORM: Final = 64  # streams at once that are broken off
CHAT: Final = "/v1/chat/completions"


async def grammars(attacker: Attacker, tally: Tally) -> None:
    """Forms of answers that are large, deep, or allow nothing at all."""
    await _ask_all(attacker, tally, "/v1/completions", [_guided(**form) for form in _forms()])


def _forms() -> list[dict[str, Any]]:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    wide = {
        f"field_{n}": {"type": "string", "pattern": f"^[a-z]{{{n % 50}}}$"} for n in range(2000)
    }
    return [
        {"json": {"type": "object", "properties": wide, "required": sorted(wide)}},
        {"json": deep},
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000}},
        {"regex": "(a?){2000}a{2000}"},
        {"regex": "(" * 500 + "a" + ")*" * 500},
        {"regex": "[^\\s\\S]"},
        {"choice": [f"{WORDS}{n}" for n in range(3000)]},
        {"grammar": "start: " + " | ".join(f'"{n}" start' for n in range(500)) + ' | ""'},
    ]


def _guided(**form: Any) -> dict[str, Any]:
    return {"prompt": "Answer: ", "max_tokens": 8, "structured_outputs": form}


async def odd_draws(attacker: Attacker, tally: Tally) -> None:
    """Sampling parameters at the ends of what is allowed, and beyond."""
    fields: Sequence[Mapping[str, Any]] = [
        {"temperature": 1e-9, "top_p": 1e-9, "top_k": 1, "min_p": 1.0},
        {"logit_bias": {str(n): -100 for n in range(300)}, "temperature": 2.0},
        {"repetition_penalty": 1e9},
        {"temperature": 1e308},
        {"min_tokens": 16, "max_tokens": 16, "logprobs": 5, "n": 8},
        {"stop": ["e", " ", "a"], "seed": 2**63 - 1, "frequency_penalty": 2.0},
    ]
    bodies = [{"prompt": WORDS, "max_tokens": 16} | dict(each) for each in fields]
    await _ask_all(attacker, tally, "/v1/completions", bodies)


async def bad_media(attacker: Attacker, tally: Tally) -> None:
    """Pictures that are cut off, none at all, or claim to have billions of pixels."""
    png = _png(64, 64)
    given = [png[:50], png[: len(png) // 2], b"", b"GIF89a", WORDS.encode(), _png(1 << 20, 1 << 20)]
    await _ask_all(attacker, tally, CHAT, [_about("image/png", data) for data in [*given, png]])


def _png(width: int, height: int) -> bytes:
    """Return a picture whose head says this size, and whose content is one of 64 pixels' height."""
    rows = zlib.compress(bytes(64 * (1 + 64 * 3)))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _about(kind: str, data: bytes) -> dict[str, Any]:
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 4}


async def texts(attacker: Attacker, tally: Tally) -> None:
    """Texts to embed, to rank and to classify, which many models refuse."""
    routes: Mapping[str, Mapping[str, Any]] = {
        "/v1/embeddings": {"input": [WORDS, "", WORDS * 200]},
        "/rerank": {"query": "fox", "documents": [WORDS] * 32},
        "/classify": {"input": WORDS},
    }
    for path, body in routes.items():
        await _ask_all(attacker, tally, path, [body] * 4)


async def crowds(attacker: Attacker, tally: Tally) -> None:
    """5,120 prompts at once, more than may wait."""
    body = {"prompt": [[100 + n % 500, 7] for n in range(128)], "max_tokens": 1}
    await _ask_all(attacker, tally, "/v1/completions", [body] * 40)
    await asyncio.sleep(10 * BETWEEN_S)


async def disconnects(attacker: Attacker, tally: Tally) -> None:
    """64 streams at once, each broken off at a moment of its own."""
    chance = random.Random(tally.sent)
    body = {"prompt": WORDS, "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 2}
    request = attacker.member.post(body)

    async def one(after_s: float) -> None:
        tally.sent += 1
        with suppress(TimeoutError, EOFError):
            async with asyncio.timeout(after_s), attacker.member.connect() as (reader, writer):
                writer.write(request)
                await read_head(reader)
                await reader.read()

    storm = (one(chance.random()) for _ in range(STORM))
    await asyncio.gather(*storm, return_exceptions=True)
    await asyncio.sleep(BETWEEN_S)


async def kills(attacker: Attacker, tally: Tally) -> None:
    """An API server is killed every 30 seconds; `answered` are those that were there to kill."""
    await asyncio.sleep(KILL_EVERY_S)
    _kill(_processes(attacker.server_pid, b"spaninfer_serving.api_server"), tally)


async def crashes(attacker: Attacker, tally: Tally) -> None:
    """The engine's process is killed every 120 seconds."""
    await asyncio.sleep(CRASH_EVERY_S)
    _kill(_processes(attacker.server_pid, b"spaninfer.engine_process"), tally)


async def full_disk(attacker: Attacker, tally: Tally) -> None:
    """No process below the supervisor can make a file longer, for 10 of every 40 seconds: what a
    full disk is to it, by a limit on the sizes of files. `answered` are processes.
    """
    await asyncio.sleep(DISK_EVERY_S - DISK_FULL_S)
    below = [pid for pid in process_usage.tree(attacker.server_pid) if pid != attacker.server_pid]
    for pid in below:
        tally.sent += 1
        tally.statuses["200" if _limit_files(pid, 0) else "cut"] += 1
    try:
        await asyncio.sleep(DISK_FULL_S)
    finally:
        for pid in below:
            _limit_files(pid, None)


FAULTS: Final[Mapping[str, Attack]] = {
    "grammars": grammars,
    "odd_draws": odd_draws,
    "bad_media": bad_media,
    "texts": texts,
    "crowds": crowds,
    "disconnects": disconnects,
    "kills": kills,
    "crashes": crashes,
    "full_disk": full_disk,
}


async def _ask_all(
    attacker: Attacker, tally: Tally, path: str, bodies: Sequence[Mapping[str, Any]]
) -> None:
    """Send requests at once, and read all answers."""
    member = attacker.member
    await asyncio.gather(*(member.ask(member.post(dict(body), path), tally) for body in bodies))
    await asyncio.sleep(BETWEEN_S)


def _processes(pid: int, module: bytes) -> list[int]:
    """Return the processes of a server that run a module."""
    found = []
    for each in process_usage.tree(pid):
        with suppress(OSError):  # it has ended meanwhile
            if module in Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0"):
                found.append(each)
    return found


def _kill(pids: Sequence[int], tally: Tally) -> None:
    if pids:
        tally.sent += 1
        with suppress(ProcessLookupError):
            os.kill(random.choice(pids), signal.SIGKILL)
            tally.statuses["200"] += 1


def _limit_files(pid: int, num_bytes: int | None) -> bool:
    """Limit the sizes of files that a process may write, or no longer; return whether it is there
    and this system has such limits for others.
    """
    if sys.platform != "linux":
        return False
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            pid, resource.RLIMIT_FSIZE, (hard if num_bytes is None else num_bytes, hard)
        )
        return True
    return False
