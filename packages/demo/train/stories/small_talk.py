"""Greetings, questions about the model, and questions that it cannot answer."""

from random import Random

from .chat import Chat, Turn, ask, pick
from .facts import fact
from .grammar import lower, tidy
from .lexicon import invented, word
from .words import anybody
from .writing import list_place, name, say

_PROPER_NAMES = tuple(
    "France Germany China India Brazil Paris London Rome Egypt Japan America Africa Berlin Moscow "
    "Einstein Napoleon Shakespeare Newton Mars Canada Italy Spain Mozart Google Europe".split()
)


def greeting(rng: Random) -> Chat:
    """Return a hello or a goodbye, or a question after the model's health."""
    kind = rng.choice(("hello", "hello", "how", "bye", "praise"))
    name = anybody(rng)
    chat = ask("how_are" if kind == "how" else kind, {"name": name}, "", rng)
    is_named = kind == "hello" and name.lower() in chat[0].text.lower()
    answer = pick("hello_name_answer" if is_named else f"{kind}_answer", {"name": name}, rng)
    return [chat[0], Turn("assistant", answer)]


def who_are_you(rng: Random) -> Chat:
    """Return a question about the model, and what it is and can do."""
    if rng.random() < 0.5:
        return ask("who_are_you", {}, pick("who_answer", {}, rng), rng)
    return ask("what_can", {}, pick("what_answer", {"example": _example(rng)}, rng), rng)


def several(rng: Random) -> Chat:
    """Return two to four small exchanges in a row."""
    makers = (greeting, who_are_you, fact, name, list_place, unknown, say)
    return [turn for _ in range(rng.choice((2, 3, 4))) for turn in rng.choice(makers)(rng)]


def unknown(rng: Random) -> Chat:
    """Return a question that a model of this size cannot answer, and the admission of that."""
    thing = rng.choice((invented(rng), word("things", rng), f"{invented(rng)} {invented(rng)}"))
    words = {
        "strange": thing,
        "proper": rng.choice(_PROPER_NAMES) if rng.random() < 0.5 else invented(rng).capitalize(),
        "proper2": rng.choice(_PROPER_NAMES),
    }
    about = {"animal": lower(tidy(f"a {word('animals', rng)}")), "example": _example(rng)}
    return ask("unknown", words, pick("unknown_answer", about, rng), rng)


def _example(rng: Random) -> str:
    first, second = word("animals", rng), word("animals", rng)
    return tidy(
        rng.choice(
            (
                f"Tell me a fable about a {first} and a {second}",
                f"Tell me a story about a {first}",
                f"Write a letter from a {first} to a {second}",
                f"Make up a name for a {first}",
            )
        )
    )
