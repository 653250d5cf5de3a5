"""The messages between the engine's process and API servers, as MessagePack.

Sequences are numbered by the API server: a prompt has a key, its choice i the number key + i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Raw, Struct, msgpack

from spaninfer_serving.api_server.records import Array, Entries, Fault
from spaninfer_serving.engine.gate import GateState


class Configure(Struct, array_like=True, tag=0, frozen=True):
    """The first message to an API server: everything that it is started with, as plain values."""

    config: dict[str, Any]
    resolved: dict[str, Any]
    settings: dict[str, Any]
    context: int
    row: int  # of the shared figures


class Ready(Struct, array_like=True, tag=1, frozen=True):
    """An API server answers requests."""


class Start(Struct, array_like=True, tag=2, frozen=True):
    """A request to start: its prompts as int64 token ids, and their keys."""

    call: int | None  # None: only a refusal is answered, by Refused
    request_id: str
    prompts: list[bytes]
    keys: list[int]
    media: list[Any]  # of each prompt, None for one without
    sampling: Raw  # fields that differ from the defaults
    placement: tuple[int, float | None, str, str, str | None]
    at_end: bool


class Stop(Struct, array_like=True, tag=3, frozen=True):
    """Choices that need no more tokens, and why."""

    numbers: list[int]
    reason: str


class Call(Struct, array_like=True, tag=4, frozen=True):
    """An operation on the engine."""

    call: int
    operation: str
    arguments: list[Any]


class Cancel(Struct, array_like=True, tag=11, frozen=True):
    """Nobody waits for the result of a call any more."""

    call: int


class Answer(Struct, array_like=True, tag=5, frozen=True):
    """The result of a call, or of a start; or why there is none."""

    call: int
    value: Any = None
    fault: Fault | None = None


class Refused(Struct, array_like=True, tag=10, frozen=True):
    """Prompts whose start was refused, and why."""

    keys: list[int]
    fault: Fault


class Gate(Struct, array_like=True, tag=6, frozen=True):
    """The gate in front of the engine has changed."""

    state: GateState


class LogFrom(Struct, array_like=True, tag=7, frozen=True):
    """Log from a level on."""

    level: str


class Drain(Struct, array_like=True, tag=8, frozen=True):
    """Take no more connections, and end when all requests are answered; at once the second time."""


class Begun(Struct, array_like=True, frozen=True):
    """The facts about a choice that its first token brings."""

    number: int
    seed: int
    cached_len: int
    arrived_s: float
    scheduled_s: float | None
    first_token_s: float | None
    prompt_logprobs: list[Array] | None


class Ending(Struct, array_like=True, frozen=True):
    """The end of a choice, with those of its tokens that had not travelled before."""

    number: int
    reason: str
    finished_s: float | None
    tokens: list[int]
    first_entry: int | None  # the number of its first token's among those of ends, if they have any
    has_last: bool  # the last token came with the end
    matched: int | None
    fault: Fault | None


class Tokens(Struct, array_like=True, tag=9, frozen=True):
    """News of the choices of one API server: first tokens, tokens, ends, in this order."""

    begun: list[Begun]
    numbers: list[int]
    tokens: list[int]  # of these
    with_entries: list[int]  # places in `tokens` of those with log-probabilities
    endings: list[Ending]
    entries: Entries | None  # log-probabilities: of tokens in these places, then of ends' tokens


FromApiServer = Ready | Start | Stop | Call | Cancel
FromEngine = Configure | Answer | Refused | Gate | LogFrom | Drain | Tokens


def _number(value: object) -> int | float:
    """Return a number of numpy's as Python's."""
    if isinstance(value, np.generic):
        return value.item()  # type: ignore[no-any-return]
    raise TypeError(f"a {type(value).__name__} does not travel")


encoder = msgpack.Encoder(enc_hook=_number)
from_api_server = msgpack.Decoder(FromApiServer)
from_engine = msgpack.Decoder(FromEngine)
