"""Turns of a conversation, and the request texts they are drawn from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from .grammar import tidy
from .template import Choice, expand, read_phrases


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says: role is "system", "user" or "assistant"."""

    role: str
    text: str


Chat = list[Turn]


@cache
def texts() -> dict[str, Choice]:
    """Return what requests.txt and poems.txt hold, and the phrases that stories share."""
    files = ("phrases.txt", "requests.txt", "poems.txt")
    return {key: value for name in files for key, value in read_phrases(name).items()}


def pick(key: str, words: Mapping[str, str], rng: Random) -> str:
    """Return one of the texts under key. Words may hold line breaks and are not changed."""
    text = expand(rng.choice(texts()[key].options), words, texts(), rng)
    return "\n".join(tidy(line) for line in text.replace("\\n", "\n").split("\n"))


def ask(key: str, words: Mapping[str, str], answer: str, rng: Random) -> Chat:
    """Return a request drawn from key, typed as people type, and the answer."""
    return [Turn("user", _as_typed(pick(key, words, rng), rng)), Turn("assistant", answer)]


def _as_typed(text: str, rng: Random) -> str:
    """Return text with the small carelessness of typing: no capitals, or no full stop."""
    chance = rng.random()
    if chance < 0.08 and text.endswith("."):
        return text[:-1]
    if chance < 0.12 and len(text) < 100:
        return text.lower().rstrip(".!")
    return text
