"""The same requests through an engine in this process: what no server can be cheaper than."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import perf_counter, process_time
from typing import Any

from spaninfer_engine import Engine, EngineConfig, SamplingParams

from spaninfer.bench.serve.window import Window
from spaninfer.bench.serve.workloads import PROMPT, Workload


def engine_window(engine: Engine, workload: Workload, seconds: float) -> Window:
    """Return what an engine did for a workload in that many seconds, and what that cost."""
    sampling = SamplingParams(
        max_tokens=workload.body["max_tokens"], temperature=0, ignore_eos=True
    )
    ids = engine.tokenizer.encode(PROMPT)
    begin_s, cpu_s, before = perf_counter(), process_time(), engine.stats().generated_tokens
    begun = deque(engine.start_request(ids, sampling) for _ in range(workload.num_clients))
    answers = 0
    while begun[0][1].wait_finished(begin_s + seconds - perf_counter()):
        for _ in begun.popleft()[1]:
            pass
        answers += 1
        begun.append(engine.start_request(ids, sampling))
    window = Window(
        seconds=perf_counter() - begin_s,
        cpu_s=process_time() - cpu_s,
        answers=answers,
        tokens=engine.stats().generated_tokens - before,
    )
    for handle, _ in begun:
        engine.release(handle)
    engine.sync()
    return window


def open_engine(asked: Mapping[str, Any]) -> Engine:
    """Return an engine with these fields of EngineConfig, which has computed a step."""
    engine = Engine(EngineConfig(**asked))
    engine.generate(PROMPT, max_tokens=1)
    return engine
