"""Clients in processes of their own: one interpreter reads 100,000 events a second and no more.

Each process has its part of a workload's clients, and is sent a line when a window begins and
ends; it answers with what its clients saw, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from time import process_time
from typing import Any

from spaninfer_engine import ConfigError

from spaninfer.bench.serve.clients import Seen, clients
from spaninfer.bench.serve.workloads import WORKLOADS, Workload
from spaninfer.bench.soak.client import Target

CORES_EACH = 4  # a process of clients for this many: the server needs the others


@dataclass(frozen=True, slots=True)
class Crowd:
    """The processes of a workload's clients, which are sending."""

    processes: Sequence[subprocess.Popen[str]]

    def begin(self) -> None:
        """Forget what was seen so far."""
        for process in self.processes:
            _tell(process, "begin")

    def end(self) -> tuple[Seen, float]:
        """Return what was seen since `begin`, and the CPU time that it took; ConfigError where a
        request was refused.
        """
        for process in self.processes:
            _tell(process, "end")
        answers = [_answer(process) for process in self.processes]
        if refused := [each["error"] for each in answers if "error" in each]:
            raise ConfigError(refused[0])
        whole = Seen(
            sum(each["answers"] for each in answers),
            sum(each["events"] for each in answers),
            [gap for each in answers for gap in each["gaps"]],
        )
        return whole, sum(each["cpu_s"] for each in answers)


@contextmanager
def crowd(target: Target, workload: Workload) -> Iterator[Crowd]:
    """Give a workload's clients, connected and sending."""
    count = min(workload.num_clients, max(1, (os.cpu_count() or 1) // CORES_EACH))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(_process(target, workload, number, count))
            for number in range(count)
        ]
        for process in processes:
            _answer(process)  # all are connected
        yield Crowd(processes)


@contextmanager
def _process(
    target: Target, workload: Workload, number: int, count: int
) -> Iterator[subprocess.Popen[str]]:
    asked = json.dumps([asdict(target), workload.name, number, count])
    command = [sys.executable, "-m", "spaninfer.bench.serve.crowd", asked]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    print(word, file=process.stdin, flush=True)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ConfigError("a client process exited; see its output above")
    answer: dict[str, Any] = json.loads(line)
    return answer


# ---- the process ---------------------------------------------------------------------------------


async def _main(target: Target, workload: Workload, count: int) -> None:
    loop = asyncio.get_running_loop()
    async with clients(target, dict(workload.body), workload.path, count) as sending:
        _say({})
        begin_s = process_time()
        while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            try:
                seen = {**asdict(sending.take()), "cpu_s": process_time() - begin_s}
            except ConfigError as refused:
                seen = {"error": str(refused)}
            if word == "end":
                _say(seen)
            begin_s = process_time()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _target, _name, _number, _count = json.loads(sys.argv[1])
    _workload = WORKLOADS[_name]
    _own = len(range(_number, _workload.num_clients, _count))
    asyncio.run(_main(Target(**_target), _workload, _own))
