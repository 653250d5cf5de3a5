"""First tokens in a conversation about one image, beside one of as many tokens without it.

Both go through a server on loopback in this process, turn by turn and in turns, every turn with the
whole conversation, as clients send it. CPU time is that of the process: server, engine and client.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from time import perf_counter, process_time
from typing import Any, Final

from spaninfer_engine import ConfigError, Engine

from spaninfer.bench.engine import Note, described
from spaninfer.bench.photographs import check_takes_images, photograph
from spaninfer.bench.records import circumstances, summary

SHOWN: Final = (1, 2, 10)  # turns

_ANSWER: Final = "I see it: a picture of many colours."


@dataclass(frozen=True, slots=True)
class _Turn:
    """The time to the first token of a turn, the CPU time until then, and the prompt."""

    wall_ms: float
    cpu_ms: float
    prompt_len: int
    cached_len: int


def measure_turns(engine: Engine, side: int, runs: int, note: Note) -> Iterator[dict[str, Any]]:
    """Yield records of turns 1, 2 and 10 about an image of `side` x `side`, and of text alone.

    Raises UnsupportedTask for a model that takes no images.
    """
    check_takes_images(engine)
    with _served(engine) as ask:
        words = _words_for(ask, _picture(side, 0))
        found = [
            _conversations(ask, {"image": _picture(side, seed), "text": _text(seed, words)})
            for seed in range(1, 2 + runs)
        ][1:]  # the first compiles
    about = {"benchmark": "turns", "image": f"{side}x{side}", **described(engine)}
    place = circumstances(engine.resolved.device)
    for turn in SHOWN:
        image, text = ([run[kind][turn - 1] for run in found] for kind in ("image", "text"))
        plain = _fields(text)
        seen = _fields(image)
        seen["of_plain"] = round(seen["median"] / plain["median"], 3)
        seen["cpu_of_plain"] = round(seen["cpu_ms"] / plain["cpu_ms"], 3)
        note(
            f"turn {turn}: {seen['median']:,} ms about an image, {plain['median']:,} without; "
            f"{seen['of_plain']:.2f} times, {seen['cpu_of_plain']:.2f} in CPU time"
        )
        for kind, fields in (("image", seen), ("text", plain)):
            yield {**about, "workload": f"turn {turn}, {kind}", **fields, **place}


def _fields(turns: list[_Turn]) -> dict[str, Any]:
    return {
        "prompt_len": turns[0].prompt_len,
        "cached": turns[0].cached_len,
        "cpu_ms": summary("ms", [turn.cpu_ms for turn in turns])["median"],
        **summary("ms", [turn.wall_ms for turn in turns]),
    }


def _conversations(ask: _Ask, firsts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[_Turn]]:
    """Return the turns of conversations about these parts, which take turns."""
    messages: dict[str, list[dict[str, Any]]] = {kind: [] for kind in firsts}
    turns: dict[str, list[_Turn]] = {kind: [] for kind in firsts}
    for number in range(1, max(SHOWN) + 1):
        question = {"type": "text", "text": f"Question {number}: what do you see in this corner?"}
        for kind, first in firsts.items():
            content = [first, question] if number == 1 else [question]
            messages[kind].append({"role": "user", "content": content})
            turns[kind].append(ask.turn(messages[kind]))
            messages[kind].append({"role": "assistant", "content": _ANSWER})
    return turns


@dataclass(frozen=True, slots=True)
class _Ask:
    """A connection to the server."""

    connection: HTTPConnection

    def turn(self, messages: list[dict[str, Any]]) -> _Turn:
        """Ask for one token; the time to it is that of the whole answer."""
        body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
        begin_s, cpu_s = perf_counter(), process_time()
        self.connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        said = self.connection.getresponse().read()
        cpu_s, wall_s = process_time() - cpu_s, perf_counter() - begin_s
        answer = json.loads(said)
        if "usage" not in answer:
            raise ConfigError(f"the server refused a turn: {answer['error']['message']}")
        usage = answer["usage"]
        cached_len = usage["prompt_tokens_details"]["cached_tokens"]
        return _Turn(1e3 * wall_s, 1e3 * cpu_s, usage["prompt_tokens"], cached_len)

    def prompt_len(self, part: Mapping[str, Any]) -> int:
        """Return the tokens of a prompt of one part."""
        return self.turn([{"role": "user", "content": [part]}]).prompt_len


def _words_for(ask: _Ask, picture: Mapping[str, Any]) -> int:
    """Return how many words of `_text` have the tokens of a picture."""
    one, two = (ask.prompt_len(_text(0, num_words)) for num_words in (1, 2))
    return 1 + round((ask.prompt_len(picture) - one) / (two - one))


def _text(seed: int, num_words: int) -> dict[str, Any]:
    """Return a text, another one from its beginning for each seed."""
    return {"type": "text", "text": f"{seed}:{' a' * num_words}"}


def _picture(side: int, seed: int) -> dict[str, Any]:
    data = base64.b64encode(photograph(side, seed)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


@contextmanager
def _served(engine: Engine) -> Iterator[_Ask]:
    """Serve an engine in this process, and give a connection to it."""
    from spaninfer_serving import Settings, serve_in_thread  # FastAPI with it: few commands need it

    with serve_in_thread(engine, Settings(port=0, log_requests=False)) as url:
        connection = HTTPConnection(url.removeprefix("http://"))
        try:
            yield _Ask(connection)
        finally:
            connection.close()
