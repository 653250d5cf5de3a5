"""The attackers as a process of their own, at the lowest priority that the system has.

Real attackers compute elsewhere. Here they would take the server's CPUs, and its clients would
wait for that instead of for the server; as they are, they get what is left over. How much
that was, and what they sent with it, stands in the records.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spaninfer.bench.soak.attacks import ATTACKS, Attacker, repeated
from spaninfer.bench.soak.client import Tally, Target
from spaninfer.bench.soak.faults import FAULTS

LOWEST = 19  # nice


@dataclass(frozen=True, slots=True)
class Attacked:
    """Counts of the attackers from a `begin` to its `end`."""

    requests: Mapping[str, Mapping[str, int]]  # by attack
    cpu_s: float


class Attackers:
    """The process, seen from outside; attacks from `begin` to `end`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        """Start the attacks."""
        self._tell("begin")

    def end(self) -> Attacked:
        """Stop the attacks; call it in a thread: a process of low priority takes its time."""
        self._tell("end")
        assert self._process.stdout is not None
        return Attacked(**json.loads(self._process.stdout.readline()))

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)


@contextmanager
def attackers(
    server_pid: int, host: str, port: int, key: str, names: Iterable[str]
) -> Iterator[Attackers]:
    """Start the process that attacks a server in the ways of `names`; it waits for `begin`."""
    asked = json.dumps(
        {"pid": server_pid, "host": host, "port": port, "key": key, "names": sorted(names)}
    )
    command = [sys.executable, "-m", "spaninfer.bench.soak.attackers", asked]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Attackers(process)
        finally:
            process.kill()


def give_way() -> None:
    """Lower this process to idle priority."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(LOWEST)


async def _attack(pid: int, host: str, port: int, key: str, names: list[str]) -> None:
    attacker = Attacker(Target(host, port), Target(host, port, key), pid)
    ways = {**ATTACKS, **FAULTS}
    while await _line() == "begin":
        begin_s = time.process_time()
        tallies = {name: Tally() for name in names}
        attacks = [
            asyncio.ensure_future(repeated(ways[name], attacker, tally))
            for name, tally in tallies.items()
        ]
        await _line()
        ended = [attack for attack in attacks if attack.done()]
        for attack in attacks:
            attack.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        for attack in ended:
            attack.result()  # the program's own fault: attacks end when they are cancelled
        found: dict[str, Any] = {
            "requests": {name: tally.summary() for name, tally in tallies.items()},
            "cpu_s": time.process_time() - begin_s,
        }
        print(json.dumps(found), flush=True)


async def _line() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


if __name__ == "__main__":
    give_way()
    asyncio.run(_attack(**json.loads(sys.argv[1])))
