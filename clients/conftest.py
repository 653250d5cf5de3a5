"""The server that clients of other projects talk to; `nox -s clients` starts it."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def server_url() -> str:
    """Where the bundled model is served, without a path."""
    return os.environ["SPANINFER_URL"]


@pytest.fixture(scope="session")
def api_url(server_url: str) -> str:
    """The base of OpenAI's API."""
    return f"{server_url}/v1"
