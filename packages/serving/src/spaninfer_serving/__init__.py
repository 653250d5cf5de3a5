"""OpenAI-compatible server for the spaninfer engine."""

from spaninfer_serving.app import create_app
from spaninfer_serving.server import bind, serve
from spaninfer_serving.settings import Settings

__all__ = ["Settings", "bind", "create_app", "serve"]
