"""The bundled demo model: a model folder in Hugging Face's layout, as package data."""

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """Return the folder that holds config.json, model.safetensors and the tokenizer."""
    return Path(__file__).parent / "model"
