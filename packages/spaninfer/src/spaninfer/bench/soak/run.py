"""The whole: a server process, its clients alone, the same under attack, and what is left."""

from __future__ import annotations

import asyncio
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from spaninfer_engine import ConfigError

from spaninfer.bench.engine import Note
from spaninfer.bench.records import circumstances
from spaninfer.bench.soak.attacks import ATTACKS, Attacker, repeated
from spaninfer.bench.soak.client import Tally, Target
from spaninfer.bench.soak.ordinary import Waits, ordinary_clients

SETTLED_S: Final = 60.0  # after the attacks; what is held then has leaked
LOOK_S: Final = 0.5
READY = re.compile(r"playground\s+http://([\d.]+):(\d+)/")


def measure_soak(
    arguments: Sequence[str], names: set[str], seconds: float, alone_s: float, note: Note
) -> dict[str, Any]:
    """Return the record of a server with these arguments of `spaninfer serve`.

    Its ordinary clients are alone for `alone_s` seconds, and attacked in all the ways of `names`
    for `seconds`.
    """
    keys = [secrets.token_hex(8) for _ in range(2)]
    with _server([*arguments, *(f"--api-key={key}" for key in keys)]) as (process, host, port):
        ordinary, member = (Target(host, port, key) for key in keys)
        attacker = Attacker(Target(host, port), member)
        return asyncio.run(
            _measured(process.pid, ordinary, attacker, names, seconds, alone_s, note)
        )


@contextmanager
def _server(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Start a server on a free port of loopback, and stop it in the end."""
    command = [
        sys.executable,
        "-m",
        "spaninfer",
        "serve",
        *arguments,
        "--host=127.0.0.1",
        "--quiet",
    ]
    process = subprocess.Popen([*command, "--port=0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := READY.search(line):
                break
        else:
            raise ConfigError(f"the server did not start: {''.join(said).strip()}")
        with _drained(process):
            yield process, found[1], int(found[2])
    finally:
        process.kill()
        process.wait()


@contextmanager
def _drained(process: subprocess.Popen[str]) -> Iterator[None]:
    """Have what the process still prints thrown away: a full pipe would stop it."""
    assert process.stderr is not None
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; [None for _ in sys.stdin]"], stdin=process.stderr
    ) as reader:
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            reader.wait()


async def _measured(
    pid: int,
    ordinary: Target,
    attacker: Attacker,
    names: set[str],
    seconds: float,
    alone_s: float,
    note: Note,
) -> dict[str, Any]:
    await ordinary_clients(ordinary, 1.0)  # compiles what is not compiled yet
    note(f"ordinary clients alone, {alone_s:g} s")
    alone = await ordinary_clients(ordinary, alone_s)
    rss_alone = _rss_mib(pid, "VmHWM")
    note(f"the same under attack, {seconds:g} s")
    tallies = {name: Tally() for name in ATTACKS if name in names}
    attacks = [
        asyncio.ensure_future(repeated(ATTACKS[name], attacker, tally))
        for name, tally in tallies.items()
    ]
    attacked = await ordinary_clients(ordinary, seconds)
    ended = [attack for attack in attacks if attack.done()]
    for attack in attacks:
        attack.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)
    for attack in ended:
        attack.result()  # the program's own fault: attacks end when they are cancelled
    left = await _left(ordinary)
    return {
        "benchmark": "soak",
        "seconds": seconds,
        "alone": alone.summary(),
        "attacked": attacked.summary(),
        "times_as_long": _ratios(alone, attacked),
        "attacks": {name: tally.summary() for name, tally in tallies.items()},
        "rss_mib": {"alone": rss_alone, "most": _rss_mib(pid, "VmHWM"), "end": _rss_mib(pid)},
        "left": left,
        **circumstances("cpu"),
    }


def _ratios(alone: Waits, attacked: Waits) -> dict[str, dict[str, float]]:
    """Return how many times as long ordinary clients wait under attack."""
    before, after = alone.summary(), attacked.summary()
    return {
        name: {at: round(after[name][at] / value, 2) for at, value in before[name].items()}
        for name in ("first_token_s", "whole_s")
        if after[name]
    }


async def _left(target: Target) -> dict[str, float]:
    """Return what the server holds when all clients have left: requests, and spans."""
    names = {
        "running": "spaninfer_running_requests",
        "waiting": "spaninfer_waiting_requests",
        "spans": r'spaninfer_spans\{[^}]*state="in_use"\}',
    }
    found: dict[str, float] = {}
    for _ in range(round(SETTLED_S / LOOK_S)):
        text = await target.ask(target.head("GET", "/metrics", None), Tally())
        for name, pattern in names.items():
            values = re.findall(rf"^{pattern} (\S+)$", text.decode(), re.MULTILINE)
            found[name] = sum(map(float, values))
        if text and not any(found.values()):
            break
        await asyncio.sleep(LOOK_S)
    return found


def _rss_mib(pid: int, name: str = "VmRSS") -> float | None:
    """Return what memory a process has, or with "VmHWM" has had; None where that is not told."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return None if found is None else round(int(found[1]) / 1024, 1)
