"""JSON files that come with a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spaninfer_engine.errors import CheckpointError

MAX_BYTES = 100_000_000
MAX_DEPTH = 64  # of tables and lists inside of others; published configs have 4


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; CheckpointError where it is none, or nested too deeply."""
    return _object(str(path), _read(path))


def read_json_list(path: Path) -> list[Any]:
    """Return the JSON list in a file; CheckpointError where it is none, or nested too deeply."""
    value = _read(path)
    if not isinstance(value, list):
        raise CheckpointError(f"{path} holds {type(value).__name__}, expected a JSON list")
    return value


def parse_json(source: str, text: bytes) -> dict[str, Any]:
    """Return the JSON object that a text of `source` is; CheckpointError where it is none."""
    return _object(source, _parse(source, text))


def _read(path: Path) -> Any:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise CheckpointError(f"{path} has {size:,} bytes; a JSON file may have {MAX_BYTES:,}")
    value = _parse(str(path), path.read_bytes())
    if _is_deeper(value, MAX_DEPTH):
        raise CheckpointError(f"{path}: tables and lists are nested more than {MAX_DEPTH} deep")
    return value


def _parse(source: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise CheckpointError(
            f"{source}: tables and lists are nested deeper than can be read"
        ) from None
    except ValueError as broken:
        raise CheckpointError(f"{source} is not JSON: {broken}") from broken


def _object(source: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{source} holds {type(value).__name__}, expected a JSON object")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    """Return True if tables and lists are nested deeper than this."""
    level = [value]
    for _ in range(depth + 1):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict | list))
