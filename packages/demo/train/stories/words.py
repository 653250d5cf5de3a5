"""Random words that several kinds of conversation share, and the tables of facts.txt."""

from collections.abc import Sequence
from functools import cache
from random import Random

from .cast import PLACES
from .grammar import capital, listing, lower, tidy
from .lexicon import invented, word
from .template import HERE, lines

NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()


@cache
def fact_rows(table: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a table of facts.txt."""
    rows: list[tuple[str, ...]] = []
    is_wanted = False
    for line in lines(HERE / "facts.txt"):
        if line.startswith("== "):
            is_wanted = line[3:].split(":")[0] == table
        elif is_wanted:
            rows.append(tuple(line.split(" | ")))
    return tuple(rows)


def random_words(rng: Random) -> dict[str, str]:
    """Return a random word for each name that requests.txt uses."""
    place, inside, _ = rng.choice(PLACES)
    thing, adjective = word("things", rng), word("thing_adjectives", rng)
    described = thing if adjective in thing else f"{adjective} {thing}"
    return {
        "noun": word("animals", rng),
        "thing": lower(tidy(f"a {described}")),
        "food": word("foods", rng),
        "place": place,
        "inside": inside,
        "name": anybody(rng),
        "home": "house",
        "someone": f"the {word('animals', rng)}",
        "part": rng.choice(("morning", "evening", "day")),
    }


def anybody(rng: Random) -> str:
    """Return a name, now and then one that nobody has."""
    if rng.random() < 0.15:
        return invented(rng).capitalize()
    return word(rng.choice(("girls", "boys", "pet_names")), rng)


def as_list(items: Sequence[str], rng: Random) -> str:
    """Return items as numbered lines, as dashes, or as a sentence."""
    style = rng.random()
    if style < 0.5:
        return "\n".join(f"{number}. {capital(item)}" for number, item in enumerate(items, 1))
    if style < 0.75:
        return "\n".join(f"- {capital(item)}" for item in items)
    return f"{capital(listing(items))}."
