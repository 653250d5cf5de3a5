"""The result of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"  # works, and could be better
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, what was seen, and the way out where that is not good."""

    what: str
    seen: str
    verdict: Verdict = Verdict.OK
    way_out: str = ""
