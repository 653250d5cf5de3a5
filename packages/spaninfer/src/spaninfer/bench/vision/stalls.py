"""The time between two tokens of running requests, alone and while pictures arrive.

A picture nobody has shown before comes every so often, with a question that is answered by one
token: it is decoded, scaled, encoded and its prompt computed beside the decodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Thread
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np
from spaninfer_engine import Engine
from spaninfer_engine.tools import complete

from spaninfer.bench.engine import Note, described
from spaninfer.bench.photographs import photograph
from spaninfer.bench.records import circumstances
from spaninfer.bench.vision.clients import ask
from spaninfer.bench.workloads import GREEDY, Prompts

DECODES: Final = 16
PICTURES_S: Final = 4.0  # pictures per second

_PROMPT_LEN = 256
_MAX_TOKENS = 16_384  # more than a window lasts
_SETTLE_S = 0.5  # until all decode
_SEED = 1 << 21  # of pictures that no other workload shows


@dataclass(slots=True)
class _Times:
    """When tokens of a request arrived."""

    arrived_s: list[float] = field(default_factory=list)

    def note(self) -> None:
        """Note that tokens have arrived."""
        self.arrived_s.append(perf_counter())

    def gaps_ms(self, begin_s: float, end_s: float) -> list[float]:
        """Return the times between two tokens that both arrived in a window."""
        inside = [at for at in self.arrived_s if begin_s <= at <= end_s]
        return [1e3 * gap for gap in np.diff(inside)]


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
    prompts = Prompts(engine.tokenizer.vocab_size, seed=0)
    lasting = replace(GREEDY, max_tokens=min(engine.context - _PROMPT_LEN, _MAX_TOKENS))
    times = [_Times() for _ in range(DECODES)]
    handles = []
    for each in times:
        handle, queue = engine.start_request(prompts.fresh(_PROMPT_LEN), lasting)
        queue.listen(each.note)
        handles.append(handle)
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
    for handle in handles:
        engine.stop(handle)
    for handle in handles:
        complete(handle)
    return [gap for each in times for gap in each.gaps_ms(begin_s, end_s)]


def _look(engine: Engine, picture: bytes) -> None:
    content = [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]
    ask(engine, [{"role": "user", "content": content}], output_len=1)
