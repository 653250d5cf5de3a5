"""Tokenizers that no reader of ours knows, through transformers where it is installed."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Library

from spaninfer_engine.errors import ConfigError


def read_by_transformers(folder: Path, reason: str) -> Library:
    """The tokenizer of a folder as transformers builds it, from local files, without their code.

    ConfigError with the reason why it is requested, where transformers is missing or does not
    know the tokenizer either.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as missing:
        raise ConfigError(
            f"{folder}: {reason}; transformers may know it: pip install transformers"
        ) from missing
    try:
        loaded = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except Exception as unknown:  # whatever a damaged folder makes of its code
        raise ConfigError(f"{folder}: {reason}; transformers does not know it either") from unknown
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"{folder}: {reason}; transformers has only a slow version of it")
    return Library.from_str(backend.to_str())
