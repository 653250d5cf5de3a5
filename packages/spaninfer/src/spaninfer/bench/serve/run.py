"""The whole: workloads one after the other, through a server and through an engine in turns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from time import perf_counter, process_time
from typing import Any, Final

from spaninfer.bench.engine import Note
from spaninfer.bench.options.sides import cpu_seconds
from spaninfer.bench.records import summary
from spaninfer.bench.serve.clients import clients
from spaninfer.bench.serve.floor import engine_window, open_engine
from spaninfer.bench.serve.mock_model import mock_folder
from spaninfer.bench.serve.window import Window, python_ns, records
from spaninfer.bench.serve.workloads import MAX_RUNNING, WORKLOADS, Workload
from spaninfer.bench.server_process import server_process
from spaninfer.bench.soak.client import Tally, Target

SETTLED_S: Final = 1.0  # until all clients of a workload have begun; a thousand take four times it
_TOKENS: Final = re.compile(rb"^spaninfer_generated_tokens_total (\S+)$", re.MULTILINE)


def measure_serve(
    names: set[str], seconds: float, runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield the fields of records: of each workload through HTTP, and through `Engine` alone."""
    loops: list[float] = []
    with ExitStack() as stack:
        folder = stack.enter_context(mock_folder())
        arguments = [str(folder), f"--max-running={MAX_RUNNING}"]
        process, host, port = stack.enter_context(server_process(arguments))
        engine = stack.enter_context(open_engine(folder))
        for workload in (WORKLOADS[name] for name in WORKLOADS if name in names):
            note(f"{workload.name}: {runs} times {seconds:g} s")
            windows: dict[str, list[Window]] = {"http": [], "engine": []}
            for _ in range(runs):
                loops.append(python_ns())
                served = _served(Target(host, port), process.pid, workload, seconds)
                windows["http"].append(asyncio.run(served))
                windows["engine"].append(engine_window(engine, workload, seconds))
            for through, found in windows.items():
                about = {"workload": workload.name, "through": through}
                yield from (about | fields for fields in records(workload, found))
    yield {"what": "round of a Python loop"} | summary("ns", loops)


async def _served(target: Target, pid: int, workload: Workload, seconds: float) -> Window:
    body, count = dict(workload.body), workload.num_clients
    async with clients(target, body, workload.path, count) as loading:
        await asyncio.sleep(SETTLED_S * max(1.0, count / 256))
        tokens = await _tokens(target)
        loading.take()
        begin_s, cpu_s, own_s = perf_counter(), cpu_seconds(pid), process_time()
        await asyncio.sleep(seconds)
        seen = loading.take()
        took_s, spent_s = perf_counter() - begin_s, cpu_seconds(pid) - cpu_s
        own_s = process_time() - own_s
        tokens = await _tokens(target) - tokens
    return Window(took_s, spent_s, seen.answers, tokens, seen.events, seen.gaps, own_s)


async def _tokens(target: Target) -> int:
    """Return how many tokens a server has drawn so far."""
    text = await target.ask(target.head("GET", "/metrics", None), Tally())
    found = _TOKENS.search(text)
    assert found is not None, "a server tells its tokens"
    return int(float(found[1]))
