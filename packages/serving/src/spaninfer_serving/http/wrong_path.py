"""Requests for a path or a method that there is not, and what they may have meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spaninfer_serving.wire.errors import Problem
from spaninfer_serving.wire.fields import did_you_mean

SIMILARITY = 0.8  # below it, /v1/images/generations was answered with /pause_generation
BASES = frozenset({"/v1", "/v1/"})  # what clients are given as their base URL


def wrong_method(method: str, path: str, allowed: Iterable[str]) -> Problem:
    """Return the refusal of a method that a path does not take; `allowed` are those that it does.

    >>> wrong_method("GET", "/v1/completions", {"POST"}).message
    'there is no GET /v1/completions; it takes POST'
    """
    methods = ", ".join(sorted(allowed))
    says = f"there is no {method} {path}; it takes {methods}"
    return Problem(405, says, headers={"Allow": methods})


def wrong_path(method: str, path: str, known: Collection[str]) -> str:
    """Return the sentence for a request whose path no route has; `known` are all paths.

    >>> wrong_path("POST", "/chat/completions", ["/v1/chat/completions"])
    "there is no POST /chat/completions; did you mean '/v1/chat/completions'?"
    """
    refused = f"there is no {method} {path}"
    if path in BASES:
        return f"{refused}: it is the base URL for clients; GET /v1/models lists the model"
    below = f"/v1{path}"
    return f"{refused}{did_you_mean(below if below in known else path, known, SIMILARITY)}"
