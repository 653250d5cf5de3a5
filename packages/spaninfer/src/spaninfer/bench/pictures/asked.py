"""Questions about a scene, their answers, and what counts as a right answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spaninfer.bench.pictures.scene import Scene


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its answer in a sentence.

    An answer is right if, of the phrases in `among`, it has `expected` and no other.
    """

    skill: str
    question: str
    answer: str
    expected: str
    among: tuple[str, ...]

    def is_right(self, answer: str) -> bool:
        """Judge a model's answer."""
        return found(answer, self.among) == {self.expected}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A scene and what can be asked about it."""

    scene: Scene
    asked: tuple[Asked, ...]


def found(answer: str, among: tuple[str, ...]) -> set[str]:
    """Return the phrases that an answer has, as whole words; a longer phrase hides a shorter one.

    >>> sorted(found("It is at the top left.", ("top", "left", "top left")))
    ['top left']
    """
    rest, phrases = f" {' '.join(re.findall('[a-z0-9]+', answer.lower()))} ", set[str]()
    for phrase in sorted(among, key=len, reverse=True):
        if f" {phrase} " in rest:
            phrases.add(phrase)
            rest = rest.replace(f" {phrase} ", " | ")
    return phrases
