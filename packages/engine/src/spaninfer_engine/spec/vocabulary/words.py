"""Building blocks of the vocabulary: words with a type, a default and a sentence, in sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spaninfer_engine.spec.language.typed import NAMES, Type, choice

REQUIRED: Final = object()  # the default of a word that must be said where it is needed
NORM: Final = choice("none", "rms", "layer")


@dataclass(frozen=True, slots=True)
class Word:
    """One key that a section may have."""

    type: Type
    default: object
    says: str
    per_layer: bool = False  # may mention `i`


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a spec file. An open one takes any key."""

    says: str
    keys: Mapping[str, Word]
    is_open: bool = False


def name(default: object, says: str) -> Word:
    """Return the word for a weight's name."""
    return Word(NAMES, default, says)
