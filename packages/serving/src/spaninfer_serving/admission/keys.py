"""API keys from files, which hold only their hashes, and what each key may use."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from spaninfer_engine import ConfigError

_HASH = re.compile(r"(?:sha256:)?([0-9a-fA-F]{64})")
MAX_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of one key; None: no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True)
class UserKey:
    """A key by its SHA-256; the name is for logs."""

    name: str
    sha256: bytes
    limits: KeyLimits = KeyLimits()


def hash_of(key: str) -> bytes:
    """Return the SHA-256 of a key; keys are long and random, so nothing slower is needed."""
    return hashlib.sha256(key.encode()).digest()


def read_admin_file(path: Path) -> tuple[bytes, ...]:
    """Return the hashes of a file, one in a line; # begins a comment. Raises ConfigError."""
    lines = (line.partition("#")[0].strip() for line in _text(path).splitlines())
    hashes = tuple(_hash(line, path) for line in lines if line)
    if not hashes:
        raise ConfigError(f"{path} holds no key; 'spaninfer hash-key' prints lines for it")
    return hashes


def read_key_file(path: Path) -> tuple[UserKey, ...]:
    """Return the keys of a TOML file with a table [[key]] for each. Raises ConfigError."""
    try:
        tables = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as broken:
        raise ConfigError(f"{path} is not TOML: {broken}") from broken
    listed = tables.get("key")
    if set(tables) != {"key"} or not isinstance(listed, list):
        raise ConfigError(f"{path} should hold tables [[key]], and nothing else")
    keys = tuple(_user_key(table, path) for table in listed)
    if len({key.name for key in keys}) < len(keys):
        raise ConfigError(f"{path} has two keys with the same name; give each its own")
    return keys


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        raise ConfigError(f"cannot read {path}: {reason}") from reason


def _user_key(table: Mapping[str, Any], path: Path) -> UserKey:
    name = table.get("name")
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise ConfigError(f"{path}: every [[key]] needs a name")
    known = {field.name for field in fields(KeyLimits)}
    unknown = table.keys() - known - {"name", "sha256"}
    if unknown:
        raise ConfigError(
            f"{path}: key {name!r} has {sorted(unknown)[0]!r}; allowed are name, sha256, "
            f"{', '.join(sorted(known))}"
        )
    limits = {field: _limit(table[field], field, name, path) for field in known & table.keys()}
    return UserKey(name, _hash(table.get("sha256"), path), KeyLimits(**limits))


def _limit(value: object, field: str, name: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LIMIT:
        raise ConfigError(f"{path}: {field} of key {name!r} should be a whole number from 1")
    return value


def _hash(text: object, path: Path) -> bytes:
    found = _HASH.fullmatch(text) if isinstance(text, str) else None
    if found is None:  # not repeated: somebody may have written the key itself
        raise ConfigError(
            f"{path}: the SHA-256 of a key has 64 hexadecimal digits, and one here does "
            "not; 'spaninfer hash-key' prints them"
        )
    return bytes.fromhex(found[1])
