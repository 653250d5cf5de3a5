"""Requests for a path or a method that there is not, and what they may have meant."""

from __future__ import annotations

from collections.abc import Collection

from spaninfer_serving.wire.fields import did_you_mean

SIMILARITY = 0.8  # below it, /v1/images/generations was answered with /pause_generation
BASES = frozenset({"/v1", "/v1/"})  # what clients are given as their base URL


def said_of(method: str, path: str, allowed: str | None, known: Collection[str]) -> str:
    """Return the sentence for a request that no route takes.

    `allowed` are the methods of a path that is one, `known` all paths.

    >>> said_of("POST", "/chat/completions", None, ["/v1/chat/completions"])
    "there is no POST /chat/completions; did you mean '/v1/chat/completions'?"
    """
    refused = f"there is no {method} {path}"
    if allowed is not None:
        return f"{refused}; it takes {allowed}"
    if path in BASES:
        return f"{refused}: it is the base URL for clients; GET /v1/models lists the model"
    below = f"/v1{path}"
    return f"{refused}{did_you_mean(below if below in known else path, known, SIMILARITY)}"
