"""python -m spaninfer."""

from spaninfer.cli import app

app()
