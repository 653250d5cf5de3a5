"""The servers that clients of other projects talk to; `nox -s clients` starts them."""

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


@pytest.fixture(scope="session")
def tools_url() -> str:
    """Where the bundled model is served with a template that has a place for tools."""
    return os.environ["SPANINFER_TOOLS_URL"]


@pytest.fixture(scope="session")
def texts_url() -> str:
    """The base of OpenAI's API of an encoder."""
    return f"{os.environ['SPANINFER_TEXTS_URL']}/v1"
