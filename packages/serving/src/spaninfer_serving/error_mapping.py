"""The engine's errors as HTTP errors of the OpenAI API, and such an error as a response."""

from __future__ import annotations

import json

from spaninfer_engine import (
    EngineAsleep,
    EngineUnavailable,
    InvalidGrammar,
    InvalidMedia,
    InvalidSampling,
    PromptTooLong,
    QueueFull,
    RequestError,
    TextTooLong,
    UnsupportedTask,
)
from starlette.types import Send

from spaninfer_serving.wire.errors import Problem

RETRY_AFTER_S = 1

# Our name of a sampling parameter -> the name on the wire, where they differ.
WIRE_NAMES = {
    "no_repeat_ngram": "no_repeat_ngram_size",
    "stop_ids": "stop_token_ids",
    "include_stop": "include_stop_str_in_output",
    "skip_special": "skip_special_tokens",
    "logit_bias (token id)": "logit_bias",
}

STOPPING = Problem(
    503,
    "the server is stopping, and had no time left to finish this request",
    type="server_error",
    code="stopping",
    headers={"Retry-After": str(RETRY_AFTER_S)},
)


def problem_of(error: Exception, prompt_param: str) -> Problem:
    """Return what to tell the client about an engine's error; others are not disclosed."""
    match error:
        case Problem():
            return error
        case PromptTooLong() | TextTooLong():
            return Problem(400, str(error), param=prompt_param, code="context_length_exceeded")
        case InvalidSampling(parameter=name):
            wire = WIRE_NAMES.get(name, name)
            return Problem(400, str(error).replace(name, wire, 1), param=wire)
        case InvalidMedia(place=place):
            return Problem(400, str(error), param=place, code="invalid_media")
        case InvalidGrammar():  # while the answer was written
            return Problem(400, str(error), code="invalid_grammar")
        case UnsupportedTask():
            return Problem(400, str(error), code="unsupported_task")
        case RequestError():
            return Problem(400, str(error), param=prompt_param)
        case QueueFull():
            return busy(str(error))
        case EngineAsleep():
            return asleep()
        case EngineUnavailable():
            return Problem(
                503,
                str(error),
                type="server_error",
                code="unavailable",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        case _:
            return Problem(
                500,
                "the server failed while it processed the request; its log says why",
                type="server_error",
            )


def asleep() -> Problem:
    """Return the refusal of a request to an engine that sleeps."""
    return Problem(
        503,
        "the engine is asleep and takes no requests until an operator wakes it up",
        type="server_error",
        code="asleep",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def busy(message: str) -> Problem:
    """Return the refusal of a request that would have to wait too long."""
    return Problem(
        429,
        message,
        type="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def unexplained(error: Exception) -> Exception | None:
    """Return an error whose traceback a log needs; None of an engine that has failed.

    That said how when it did: the requests that it ends, and later ones, are a line each.
    """
    return None if isinstance(error, EngineUnavailable) else error


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a refusal as a whole response."""
    body = json.dumps(problem.body()).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **problem.headers,
    }
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
