"""Sizes as people write them."""

from __future__ import annotations

import re

from spaninfer_engine.errors import ConfigError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


def parse_bytes(text: str) -> int:
    """Return a number of bytes from text such as 512MiB, 8G or 1048576.

    >>> parse_bytes("1.5KiB")
    1536

    Raises ConfigError for anything else, and for numbers below 1024 that lack a unit: 8 is meant
    as 8 GiB more often than as 8 bytes.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?)?B?\s*", text.upper())
    if found is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512MiB, 8GiB or 1048576")
    num_bytes = int(float(found[1]) * _UNITS[found[2] or ""])
    if 0 < num_bytes < _UNITS["KI"] and found[1] == text.strip():
        raise ConfigError(f"{text!r} has no unit; write for example {found[1]}GiB or {found[1]}MiB")
    return num_bytes
