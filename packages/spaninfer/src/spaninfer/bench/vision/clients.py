"""Clients of an engine in threads of their own, as a server's requests are, and their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from time import perf_counter, process_time
from typing import Any

from spaninfer_engine import Engine
from spaninfer_engine.tools import complete

from spaninfer.bench.workloads import GREEDY

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Answered:
    """The time from a conversation to its first token, picture included, and its lengths."""

    first_ms: float
    prompt_len: int
    cached_len: int


@dataclass(frozen=True, slots=True)
class Burst:
    """Conversations that clients asked at once: wall time and CPU time of the process."""

    answers: tuple[Answered, ...]
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.answers) / self.seconds


def ask_all(engine: Engine, asked: Sequence[Messages], at_once: int, output_len: int) -> Burst:
    """Have conversations answered by so many clients, each of which asks when it has an answer."""
    with ThreadPoolExecutor(at_once) as clients:
        begin_s, cpu_s = perf_counter(), process_time()
        answers = tuple(clients.map(lambda each: ask(engine, each, output_len), asked))
        return Burst(answers, perf_counter() - begin_s, process_time() - cpu_s)


def ask(engine: Engine, messages: Messages, output_len: int) -> Answered:
    """Have one conversation answered with that many tokens."""
    begin_s = perf_counter()
    prompt = engine.encode_chat(messages)
    handle, queue = engine.start_request(prompt, replace(GREEDY, max_tokens=output_len))
    arrived_s: list[float] = []
    is_finished = Event()

    def note() -> None:
        arrived_s.append(perf_counter())
        if queue.is_finished:
            is_finished.set()

    queue.listen(note)
    is_finished.wait()  # woken once: a thread that reads every token would hold up the others
    (answer,) = complete(handle)
    usage = answer.usage
    return Answered(1e3 * (arrived_s[0] - begin_s), usage.prompt_len, usage.cached_len)
