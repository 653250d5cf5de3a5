"""Sizes as people write them."""

from __future__ import annotations

import re

from spaninfer_engine.errors import ConfigError

_UNITS = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}I": 1024**power for power, letter in enumerate("KMGT", 1)},
}


def parse_bytes(text: str) -> int:
    """Return a number of bytes from text such as 512MiB, 8G or 1048576.

    >>> parse_bytes("1.5KiB")
    1536

    Raises ConfigError for anything else, and for numbers below 1024 that lack a unit: 8 is meant
    as 8 GiB more often than as 8 bytes.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", text.upper())
    if found is None:
        raise ConfigError(
            f"{text!r} is not a size; write for example 512MiB, 8GiB or 1048576 (units: B, KB, MB, "
            "GB, TB of powers of 1000, and KiB, MiB, GiB, TiB of powers of 1024)"
        )
    num_bytes = int(float(found[1]) * _UNITS[found[2] or ""])
    if 0 < num_bytes < _UNITS["KI"] and found[1] == text.strip():
        raise ConfigError(f"{text!r} has no unit; write for example {found[1]}GiB or {found[1]}MiB")
    return num_bytes
