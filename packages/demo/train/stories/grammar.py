"""Rules of English that templates need not think about: articles, capitals, plurals, lists."""

import re
from collections.abc import Sequence

_VOWEL_SOUND = ("hour", "honest", "heir")
_CONSONANT_SOUND = ("uni", "use", "usu", "one", "once", "eu", "u-")
_ARTICLE = re.compile(r"\b([Aa]) (?=([A-Za-z]+))")
_OPENING = re.compile(r'((?:^|[.!?] |\.["\'] |\n)"?)([a-z])')
_SPACES = re.compile(r" {2,}")
_BEFORE_POINT = re.compile(r" +([,.!?;:])")
_SMALL_WORDS = frozenset("a an the and of in on at by to who with for from".split())
_IRREGULAR = {
    "mouse": "mice", "goose": "geese", "ox": "oxen", "sheep": "sheep", "deer": "deer",
    "moose": "moose", "wolf": "wolves", "calf": "calves", "leaf": "leaves", "loaf": "loaves",
    "child": "children", "man": "men", "woman": "women", "foot": "feet", "tooth": "teeth",
    "fisherman": "fishermen", "postman": "postmen", "snowman": "snowmen", "elf": "elves",
    "dwarf": "dwarves", "thief": "thieves", "knife": "knives", "pocketknife": "pocketknives",
    "squid": "squid", "jar of honey": "jars of honey", "bag of nuts": "bags of nuts",
}  # fmt: skip


def article(word: str) -> str:
    """Return "a" or "an", whichever is spoken before word."""
    lower = word.lower()
    if lower.startswith(_VOWEL_SOUND):
        return "an"
    if lower.startswith(_CONSONANT_SOUND):
        return "a"
    return "an" if lower[:1] in "aeiou" else "a"


def plural(noun: str) -> str:
    """Return the plural of noun, by rule or from the table of irregular ones."""
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def capital(text: str) -> str:
    """Return text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def lower(text: str) -> str:
    """Return text with its first letter in lower case."""
    return text[:1].lower() + text[1:]


def listing(items: Sequence[str]) -> str:
    """Return items as a list in words: "a", "a and b", "a, b and c"."""
    if len(items) == 1:
        return items[0]
    return f"{', '.join(items[:-1])} and {items[-1]}"


def title_case(text: str) -> str:
    """Return text as a title: every word capital but the small ones inside."""
    words = text.split(" ")
    cased = [w if i and w.lower() in _SMALL_WORDS else capital(w) for i, w in enumerate(words)]
    return " ".join(cased)


def tidy(text: str) -> str:
    """Return text with single spaces, the right articles and a capital at each sentence's start.

    Templates write "a" everywhere. A lower-case word after a closing quote stays as it is when the
    quote ends in "!" or "?", because "Help!" cried the fox is one sentence.
    """
    text = _BEFORE_POINT.sub(r"\1", _SPACES.sub(" ", text.strip()))
    text = _ARTICLE.sub(_right_article, text)
    return _OPENING.sub(lambda found: found[1] + found[2].upper(), text)


def _right_article(found: re.Match[str]) -> str:
    letter = "A" if found[1] == "A" else "a"
    return letter + article(found[2])[1:] + " "
