"""The time between two tokens of running requests, alone and while pictures arrive.

A picture nobody has shown before comes every so often, with a question that is answered by one
token: it is decoded, scaled, encoded and its prompt computed beside the decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np
from spaninfer_engine import Engine, ResultQueue
from spaninfer_engine.tools import complete

from spaninfer.bench.engine import Note, described
from spaninfer.bench.photographs import photograph
from spaninfer.bench.records import circumstances
from spaninfer.bench.vision.clients import ask
from spaninfer.bench.workloads import GREEDY, Prompts

DECODES: Final = 16
PICTURES_S: Final = 4.0  # pictures per second

_PROMPT_LEN = 256
_MAX_TOKENS = 16_384  # more than a window lasts, on most machines
_SETTLE_S = 0.5  # until all decode
_SEED = 1 << 21  # of pictures that no other workload shows


class _Decode:
    """A client whose request runs as long as it may, and is followed by another one."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number = engine, number
        self._arrived_s: list[list[float]] = []  # of every request
        self._is_over = False
        self._wake = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        prompts = Prompts(self._engine.tokenizer.vocab_size, self._number)
        lasting = min(self._engine.context - _PROMPT_LEN, _MAX_TOKENS)
        while not self._is_over:
            arrived_s: list[float] = []
            self._arrived_s.append(arrived_s)
            self._wake.clear()
            handle, queue = self._engine.start_request(
                prompts.fresh(_PROMPT_LEN), replace(GREEDY, max_tokens=lasting)
            )
            queue.listen(partial(self._note, queue, arrived_s))
            self._wake.wait()
            self._engine.stop(handle)
            complete(handle)

    def _note(self, queue: ResultQueue, arrived_s: list[float]) -> None:
        arrived_s.append(perf_counter())
        if queue.is_finished or self._is_over:
            self._wake.set()

    def end(self) -> None:
        """Stop the request that runs."""
        self._is_over = True
        self._thread.join()

    def gaps_ms(self, begin_s: float, end_s: float) -> Iterator[float]:
        """Yield the times between two tokens of a request that both arrived in a window."""
        for arrived_s in self._arrived_s:
            inside = [at for at in arrived_s if begin_s <= at <= end_s]
            yield from 1e3 * np.diff(inside)


def measure_stalls(
    engine: Engine, side: int, seconds: float, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield a record of the times between tokens without pictures, and one with them."""
    pictures = [photograph(side, _SEED + at) for at in range(2 + int(PICTURES_S * seconds))]
    _look(engine, pictures.pop())  # what is compiled for the first one
    for shown in ([], pictures):
        gaps = _gaps_ms(engine, shown, seconds)
        name = f"{DECODES} decodes" + (f" beside {PICTURES_S:g} pictures a second" if shown else "")
        p50, p99 = np.percentile(gaps, (50, 99))
        fields = {
            "unit": "ms",
            "median": round(float(p50), 3),
            "least": round(min(gaps), 3),
            "p99": round(float(p99), 3),
            "most": round(max(gaps), 3),
        }
        note(f"{name}: {fields['median']} ms, p99 {fields['p99']}, at most {fields['most']}")
        yield {
            "benchmark": "vision",
            "workload": name,
            "of": "time between tokens",
            "image": f"{side}x{side}",
            **described(engine),
            **fields,
            **circumstances(engine.resolved.device),
        }


def _gaps_ms(engine: Engine, pictures: list[bytes], seconds: float) -> list[float]:
    """Return all times between two tokens of running requests, while pictures come."""
    decodes = [_Decode(engine, number) for number in range(DECODES)]
    sleep(_SETTLE_S)
    begin_s = perf_counter()
    clients = []
    for picture in pictures:
        clients.append(Thread(target=_look, args=(engine, picture)))
        clients[-1].start()
        sleep(1 / PICTURES_S)
    sleep(max(0.0, begin_s + seconds - perf_counter()))
    for client in clients:
        client.join()
    end_s = perf_counter()
    for decode in decodes:
        decode.end()
    return [gap for decode in decodes for gap in decode.gaps_ms(begin_s, end_s)]


def _look(engine: Engine, picture: bytes) -> None:
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]
    ask(engine, [{"role": "user", "content": content}], output_len=1)
