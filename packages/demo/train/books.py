"""Passages of the books named in data.toml, with plain quotes, and Aesop's fables as answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from stories.chat import Chat, Turn

_PASSAGE_CHARS = (1_500, 3_000, 6_000, 16_000)  # the longest fills a row of 4,096 tokens
_PLAIN = str.maketrans(
    {"“": '"', "”": '"', "\u2018": "'", "\u2019": "'", "\ufeff": "", "\u2060": "", "\xa0": " "}
)


@dataclass(frozen=True, slots=True)
class Book:
    """A book's paragraphs, and how often it is drawn compared with the others."""

    paragraphs: tuple[str, ...]
    weight: float


def read_books(folder: Path, weights: dict[str, float]) -> list[Book]:
    """Return the books of folder that weights names."""
    return [Book(_paragraphs(folder / name), weight) for name, weight in weights.items()]


def read_fables(path: Path) -> list[tuple[str, str]]:
    """Return (title, text) of each fable of a book; a title is a short line without a full stop."""
    blocks: list[list[str]] = []
    for line in _paragraphs(path):
        if len(line) < 60 and line[-1].isalpha():
            blocks.append([line])
        elif blocks:
            blocks[-1].append(line)
    return [(block[0], "\n\n".join(block[1:])) for block in blocks if _is_fable(block)]


def draw_passage(books: Sequence[Book], rng: Random) -> str:
    """Return consecutive paragraphs of a random book."""
    (book,) = rng.choices(books, [book.weight * len(book.paragraphs) for book in books])
    first = last = rng.randrange(len(book.paragraphs))
    num_chars = rng.choice(_PASSAGE_CHARS)
    while num_chars > 0 and last < len(book.paragraphs):
        num_chars -= len(book.paragraphs[last])
        last += 1
    return "\n\n".join(book.paragraphs[first:last])


def draw_fable(fables: Sequence[tuple[str, str]], rng: Random) -> Chat:
    """Return a request for one of Aesop's fables by its title, and the fable."""
    title, text = rng.choice(fables)
    asked = rng.choice(
        (
            f"Tell me Aesop's fable of {title}.",
            f"Tell me the fable of {title} by Aesop.",
            f"Do you know Aesop's fable {title}?",
        )
    )
    return [Turn("user", asked), Turn("assistant", text)]


def _paragraphs(path: Path) -> tuple[str, ...]:
    """Return the paragraphs of a book that has one in each line."""
    rows = path.read_text(encoding="utf-8").translate(_PLAIN).splitlines()
    return tuple(row.strip() for row in rows if row.strip())


def _is_fable(block: list[str]) -> bool:
    return len(block) > 1 and 200 < sum(map(len, block[1:])) < 3_000
