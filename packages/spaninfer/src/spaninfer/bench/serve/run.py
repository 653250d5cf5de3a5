"""The whole: workloads one after the other, through a server and through an engine in turns."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from time import perf_counter, sleep
from typing import Any, Final

from spaninfer.bench import process_usage
from spaninfer.bench.engine import Note, described
from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.serve.crowd import crowd
from spaninfer.bench.serve.floor import engine_window, open_engine
from spaninfer.bench.serve.window import Window, python_ns, records
from spaninfer.bench.serve.workloads import WORKLOADS, Workload
from spaninfer.bench.server_process import server_process
from spaninfer.bench.soak.client import Tally, Target
from spaninfer.option_groups import as_arguments

SETTLED_S: Final = 1.0  # until all clients of a workload have begun; a thousand take four times it
_TOKENS: Final = re.compile(rb"^spaninfer_generated_tokens_total (\S+)$", re.MULTILINE)


def measure_serve(
    asked: Mapping[str, Any],
    names: set[str],
    seconds: float,
    runs: int,
    note: Note,
    api_servers: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield records: of each workload through HTTP, and through `Engine` alone.

    Server and engine have these fields of EngineConfig, and are there at the same time;
    `api_servers` are processes that answer beside the engine's.
    """
    loops: list[float] = []
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(asked))
        served = stack.enter_context(server_process(_arguments(asked, api_servers)))
        same = {"benchmark": "serve", **described(engine)}
        place = circumstances(engine.resolved.device)
        for workload in (WORKLOADS[name] for name in WORKLOADS if name in names):
            note(f"{workload.name}: {runs} times {seconds:g} s")
            windows: dict[str, list[Window]] = {"http": [], "engine": []}
            for _ in range(runs):
                loops.append(python_ns())
                windows["http"].append(_window(*served, workload, seconds))
                windows["engine"].append(engine_window(engine, workload, seconds))
            for through, found in windows.items():
                about = {**same, "workload": workload.name, "through": through}
                if through == "http" and api_servers:
                    about |= {"api_servers": api_servers}
                yield from (about | fields | place for fields in records(workload, found))
    yield same | {"what": "round of a Python loop"} | summary("ns", loops) | place


def _arguments(asked: Mapping[str, Any], api_servers: int) -> list[str]:
    """Return the arguments of a server with these fields of EngineConfig."""
    options = {**asked, "model": None, "api_server_count": api_servers}
    return [str(asked["model"]), *as_arguments(options)]


def _window(
    process: subprocess.Popen[str], host: str, port: int, workload: Workload, seconds: float
) -> Window:
    target = Target(host, port)
    with crowd(target, workload) as sending:
        sleep(SETTLED_S * max(1.0, workload.num_clients / 256))
        [engine] = process_usage.children(process.pid) or [process.pid]  # not the supervisor
        tokens, servers = _tokens(target), process_usage.children(engine)
        sending.begin()
        begin_s = perf_counter()
        engine_s, servers_s = (
            process_usage.cpu_s(engine),
            sum(map(process_usage.cpu_s, servers)),
        )
        sleep(seconds)
        seen, own_s = sending.end()
        took_s = perf_counter() - begin_s
        engine_s = process_usage.cpu_s(engine) - engine_s
        servers_s = sum(map(process_usage.cpu_s, servers)) - servers_s
        tokens = _tokens(target) - tokens
    return Window(
        seconds=took_s,
        cpu_s=engine_s + servers_s,
        answers=seen.answers,
        tokens=tokens,
        events=seen.events,
        gaps=seen.gaps,
        client_cpu_s=own_s,
        engine_cpu_s=engine_s if servers else None,
    )


def _tokens(target: Target) -> int:
    """Return how many tokens a server has drawn so far."""
    text = asyncio.run(target.ask(target.head("GET", "/metrics", None), Tally()))
    found = _TOKENS.search(text)
    assert found is not None, "a server tells its tokens"
    return int(float(found[1]))
