"""OpenAI-compatible server for the spaninfer engine."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spaninfer_serving.api_server.processes import api_server_processes
    from spaninfer_serving.app import create_app
    from spaninfer_serving.http.listener import bind
    from spaninfer_serving.in_thread import serve_in_thread
    from spaninfer_serving.lifeline import end_with
    from spaninfer_serving.process import serve
    from spaninfer_serving.settings import Settings
    from spaninfer_serving.supervisor.supervised import Supervised
    from spaninfer_serving.supervisor.supervisor import supervise

__all__ = [
    "Settings",
    "Supervised",
    "api_server_processes",
    "bind",
    "create_app",
    "end_with",
    "serve",
    "serve_in_thread",
    "supervise",
]

_HOMES = {
    "Settings": "settings",
    "Supervised": "supervisor.supervised",
    "api_server_processes": "api_server.processes",
    "bind": "http.listener",
    "create_app": "app",
    "end_with": "lifeline",
    "serve": "process",
    "serve_in_thread": "in_thread",
    "supervise": "supervisor.supervisor",
}


def __getattr__(name: str) -> object:
    """Import what is used: FastAPI and the wire format are half of what a command imports."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return what is offered, before it is imported."""
    return sorted({*globals(), *__all__})
