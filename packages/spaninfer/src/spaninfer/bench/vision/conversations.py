"""Conversations of three turns about a picture each, that many at once, turn by turn.

All of a turn start together. Each turn brings the whole conversation, the picture's file in it, and
a new question; earlier answers are a text of as many tokens as models gave. The first turn has to
decode, scale and encode every picture; what later ones find depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from spaninfer_engine import Engine

from spaninfer.bench.engine import Note, described
from spaninfer.bench.photographs import photograph
from spaninfer.bench.records import circumstances, summary
from spaninfer.bench.vision.clients import Burst, ask_all

TURNS: Final = 3
OUTPUT_LEN: Final = 120

_ANSWER = " a" * OUTPUT_LEN  # a token each
_CONVERSATIONS = 4  # at least: one request at a time has this many runs
_SEED_BITS = 12  # pictures of one workload are not those of another


def measure_conversations(
    engine: Engine, at_once: int, side: int, runs: int, note: Note
) -> Iterator[dict[str, Any]]:
    """Yield two records of each turn: answers per second, and the time to the first token."""
    count = max(at_once, _CONVERSATIONS)
    first = at_once << _SEED_BITS
    _bursts(engine, at_once, range(first, first + at_once), side)  # what is compiled for them
    found = [
        _bursts(engine, at_once, range(first + run * count, first + (run + 1) * count), side)
        for run in range(1, 1 + runs)
    ]
    about = {
        "benchmark": "vision",
        "workload": f"{at_once} at a time",
        "image": f"{side}x{side}",
        **described(engine),
    }
    place = circumstances(engine.resolved.device)
    for turn in range(TURNS):
        bursts = [run[turn] for run in found]
        rates = summary("requests/s", [burst.rate for burst in bursts])
        waits = summary("ms", [each.first_ms for burst in bursts for each in burst.answers])
        note(
            f"{at_once} at a time, turn {turn + 1}: {rates['median']} requests/s, "
            f"first token after {waits['median']:,} ms"
        )
        for of, fields in (("answers", rates), ("first token", waits)):
            yield {**about, "turn": turn + 1, "of": of, **_lengths(bursts), **fields, **place}


def _lengths(bursts: list[Burst]) -> dict[str, Any]:
    answer = bursts[0].answers[0]
    requests = sum(len(burst.answers) for burst in bursts)
    return {
        "prompt_len": answer.prompt_len,
        "cached": answer.cached_len,
        "output_len": OUTPUT_LEN,
        "cpu_ms": round(1e3 * sum(burst.cpu_s for burst in bursts) / requests, 1),
    }


def _bursts(engine: Engine, at_once: int, seeds: range, side: int) -> list[Burst]:
    """Return the turns of conversations about the pictures of these seeds."""
    conversations: list[list[dict[str, Any]]] = [[] for _ in seeds]
    pictures = [{"type": "image", "image": photograph(side, seed)} for seed in seeds]
    bursts = []
    for turn in range(TURNS):
        question = {"type": "text", "text": f"Question {turn + 1}: what do you see in the corner?"}
        for messages, picture in zip(conversations, pictures, strict=True):
            content = [question] if turn else [picture, question]
            messages.append({"role": "user", "content": content})
        bursts.append(ask_all(engine, conversations, at_once, OUTPUT_LEN))
        for messages in conversations:
            messages.append({"role": "assistant", "content": _ANSWER})
    return bursts
