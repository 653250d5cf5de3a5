"""Templates: text in which "[a|b]" is a choice and "{name}" a reference to a word or a phrase.

Brackets nest. A reference whose letters are not all small starts with a capital where it stands.
A plot file is a list of headed blocks; a phrase file maps names to alternatives (read_phrases).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .grammar import capital

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in braces: the key it stands for, and whether a capital was asked for."""

    key: str
    is_capital: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several texts, each as likely as the others."""

    options: tuple[Template, ...]


Template = tuple[str | Reference | Choice, ...]
Words = Mapping[str, str | tuple[str, ...]]


class TemplateError(ValueError):
    """A template or the file around it is malformed, or names something that does not exist."""


def parse(text: str) -> Template:
    """Return the template that text describes; raise TemplateError where brackets do not match."""
    template, end = _sequence(text, 0, closing="")
    assert end == len(text)
    return template


def expand(template: Template, words: Words, phrases: Mapping[str, Choice], rng: Random) -> str:
    """Return one text of template. A name is looked up in words first, then in phrases."""
    pieces: list[str] = []
    for part in template:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Choice):
            pieces.append(expand(_draw(part, rng), words, phrases, rng))
        else:
            text = _look_up(part.key, words, phrases, rng)
            pieces.append(capital(text) if part.is_capital else text)
    return "".join(pieces)


def read_phrases(name: str) -> dict[str, Choice]:
    """Return the phrases of a file beside this module: a line with a name, then "- " lines."""
    found: dict[str, list[Template]] = {}
    options: list[Template] = []
    for line in lines(HERE / name):
        if line.startswith("- "):
            options.append(parse(line[2:]))
        else:
            options = found.setdefault(line, [])
    return {key: Choice(tuple(alternatives)) for key, alternatives in found.items()}


def lines(path: Path) -> list[str]:
    """Return the lines of a data file without blank ones and comments."""
    rows = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row and not row.startswith("# ")]


def _draw(choice: Choice, rng: Random) -> Template:
    return choice.options[int(rng.random() * len(choice.options))]


def _look_up(key: str, words: Words, phrases: Mapping[str, Choice], rng: Random) -> str:
    found = words.get(key)
    if isinstance(found, str):
        return found
    if found is not None:
        return found[int(rng.random() * len(found))]
    if key not in phrases:
        raise TemplateError(f"{{{key}}} is neither a word of the cast nor a phrase")
    return expand(_draw(phrases[key], rng), words, phrases, rng)


def _sequence(text: str, start: int, closing: str) -> tuple[Template, int]:
    """Return the parts from start to one of the closing characters, and where that one stands."""
    parts: list[str | Reference | Choice] = []
    literal_start = position = start
    while position < len(text) and text[position] not in (closing or "\0"):
        if text[position] not in "[{":
            position += 1
            continue
        if position > literal_start:
            parts.append(text[literal_start:position])
        read = _choice if text[position] == "[" else _reference
        part, position = read(text, position + 1)
        parts.append(part)
        literal_start = position
    if closing and position == len(text):
        raise TemplateError(f"a bracket is not closed in: {text}")
    if position > literal_start:
        parts.append(text[literal_start:position])
    return tuple(parts), position


def _choice(text: str, position: int) -> tuple[Choice, int]:
    options: list[Template] = []
    while True:
        option, position = _sequence(text, position, closing="|]")
        options.append(option)
        position += 1
        if text[position - 1] == "]":
            return Choice(tuple(options)), position


def _reference(text: str, position: int) -> tuple[Reference, int]:
    end = text.find("}", position)
    if end < 0:
        raise TemplateError(f"a brace is not closed in: {text}")
    name = text[position:end]
    return Reference(name.lower(), not name.islower()), end + 1
