"""The whole: a server process, its clients alone and attacked in turns, and what is left."""

from __future__ import annotations

import asyncio
import re
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from spaninfer_engine import EngineUnavailable

from spaninfer.bench import process_usage
from spaninfer.bench.engine import Note
from spaninfer.bench.server_process import server_process
from spaninfer.bench.soak.attackers import Attacked, Attackers, attackers
from spaninfer.bench.soak.client import Tally, Target
from spaninfer.bench.soak.ordinary import ordinary_clients
from spaninfer.bench.soak.rounds import Phase, Round

SETTLED_S: Final = 60.0  # after the attacks; what is held then has leaked
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds under attack and without, both cut into as many rounds, in turns.

    So others on this machine slow both.
    """

    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Seconds under attack.")] = 300.0
    alone: Annotated[
        float,
        typer.Option(min=1, max=3600, help="Seconds with ordinary clients only, for comparison."),
    ] = 60.0
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of alternating rounds that both are split into.")
    ] = 3


def measure_soak(
    arguments: Sequence[str], names: set[str], timing: Timing, note: Note
) -> list[Round]:
    """Return what a server with these arguments of `spaninfer serve` showed, round by round.

    Its ordinary clients are alone, and then attacked in all the ways of `names`. Raises ConfigError
    where the server does not start, EngineUnavailable where it ends or no longer answers.
    """
    keys = [secrets.token_hex(8) for _ in range(2)]
    with (
        server_process([*arguments, *(f"--api-key={key}" for key in keys)]) as (
            process,
            host,
            port,
        ),
        attackers(process.pid, host, port, keys[1], names) as attacking,
    ):
        soak = _Soak(process, Target(host, port, keys[0]), attacking, note)
        return asyncio.run(soak.rounds(timing))


class _Soak:
    """A server, those who attack it, and its ordinary clients, who are in this process.

    The server is all of its processes: the one that was started, and those below it.
    """

    def __init__(
        self,
        process: subprocess.Popen[str],
        ordinary: Target,
        attacking: Attackers,
        note: Note,
    ) -> None:
        self._process, self._pid = process, process.pid
        self._ordinary, self._attacking, self._note = ordinary, attacking, note
        self._processes = process_usage.tree(process.pid)

    async def rounds(self, timing: Timing) -> list[Round]:
        await ordinary_clients(self._ordinary, 1.0)  # compiles what is not compiled yet
        alone_s, seconds = timing.alone / timing.rounds, timing.seconds / timing.rounds
        return [await self._round(n, alone_s, seconds) for n in range(1, timing.rounds + 1)]

    async def _round(self, number: int, alone_s: float, seconds: float) -> Round:
        self._note(f"round {number}: ordinary clients alone, {alone_s:g} s")
        alone = await self._phase(alone_s, None)
        self._note(f"round {number}: the same under attack, {seconds:g} s")
        attacked = await self._phase(seconds, self._attacking)
        held = await self._held() | {"lost processes": self._num_lost()}
        return Round(alone, attacked, held, self._memory_mib("VmRSS"))

    async def _phase(self, seconds: float, attacking: Attackers | None) -> Phase:
        begin_s, server_s, own_s = time.perf_counter(), self._servers_s(), time.process_time()
        busy_s = process_usage.busy_cpus_s()
        if attacking is not None:
            attacking.begin()
        waits = await ordinary_clients(self._ordinary, seconds)
        took_s = time.perf_counter() - begin_s
        # Before the attackers end: that may take them a while, in which they are not attackers.
        cpus = {
            "server": _more(self._servers_s(), server_s) / took_s,
            "clients": (time.process_time() - own_s) / took_s,
        }
        whole_s = process_usage.busy_cpus_s()
        did = Attacked({}, 0.0)
        if attacking is not None:
            did = await asyncio.to_thread(attacking.end)
            cpus["attackers"] = did.cpu_s / took_s
        if busy_s is not None and whole_s is not None:
            cpus["others"] = max((whole_s - busy_s) / took_s - sum(cpus.values()), 0.0)
        return Phase(took_s, waits, cpus, did.requests, self._memory_mib("VmHWM"))

    def _servers_s(self) -> dict[int, float]:
        """Return the CPU time of each process."""
        return {pid: process_usage.cpu_s(pid) for pid in process_usage.tree(self._pid)}

    def _memory_mib(self, name: str) -> float | None:
        """Return the sum over the processes: libraries that they share count for each."""
        known = [process_usage.rss_mib(pid, name) for pid in process_usage.tree(self._pid)]
        found = [each for each in known if each is not None]
        return round(sum(found), 1) if found else None

    def _num_lost(self) -> int:
        """Return how many of the server's processes there are no more, replaced or not."""
        there = process_usage.tree(self._pid)
        return sum(pid not in there for pid in self._processes)

    async def _held(self) -> dict[str, float]:
        """Return what the server holds when all clients have left: requests, and spans.

        Raises EngineUnavailable where there is nobody left to say so.
        """
        names = {
            "running": "spaninfer_running_requests",
            "waiting": "spaninfer_waiting_requests",
            "spans": r'spaninfer_spans\{[^}]*state="in_use"\}',
        }
        found: dict[str, float] = {}
        text = b""
        for _ in range(round(SETTLED_S / LOOK_S)):
            if (status := self._process.poll()) is not None:
                raise EngineUnavailable(f"the server ended during the soak, with status {status}")
            request = self._ordinary.head("GET", "/metrics", None)
            text = await self._ordinary.ask(request, Tally())
            for name, pattern in names.items():
                values = re.findall(rf"^{pattern} (\S+)$", text.decode(), re.MULTILINE)
                found[name] = sum(map(float, values))
            if text and not any(found.values()):
                break
            await asyncio.sleep(LOOK_S)
        if not text:
            raise EngineUnavailable(
                f"the server has not answered GET /metrics for {SETTLED_S:g} s after the attacks"
            )
        return found


def _more(after: Mapping[int, float], before: Mapping[int, float]) -> float:
    """Return the CPU time that processes took, but for that of those which have ended meanwhile."""
    return sum(each_s - before.get(pid, 0.0) for pid, each_s in after.items())
