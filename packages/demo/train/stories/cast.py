"""The cast of a story: beings, things, places and food, as words for templates."""

from dataclasses import dataclass, replace
from random import Random

from .grammar import article
from .lexicon import COLUMNS, TABLES, Row, invented, row, word

PRONOUNS = {
    "he": ("he", "him", "his", "himself"),
    "she": ("she", "her", "her", "herself"),
    "it": ("it", "it", "its", "itself"),
}
_FAR_FROM_HERE = {"sky", "sea", "moon", "planet", "hospital", "zoo", "plain", "hedge"}
PLACES = tuple(place for place in TABLES["places"] if place[0] not in _FAR_FROM_HERE)
_CROPS = ("apples", "pears", "plums", "cherries", "beans", "carrots", "turnips", "figs", "nuts")
_INVENTED_SHARE = 0.04
_PAIR_SHARE = 0.06
_STRANGER_SHARE = 0.35
_HE_BY_NOUN = {
    **dict.fromkeys(
        "duchess woman girl ballerina daughter mother aunt nun giantess".split(), "she"
    ),
    **dict.fromkeys("fireman policeman monk duke emperor sultan man boy son father".split(), "he"),
    **dict.fromkeys("uncle cowboy priest butler jester ferryman".split(), "he"),
}


@dataclass(frozen=True, slots=True)
class Being:
    """Somebody in a story. Only heroes and children have names; the others are "the fox"."""

    kind: str
    noun: str
    he: str
    home: str
    food: str
    place: str
    adjective: str | None
    name: str | None
    is_twin: bool = False  # the other hero has the same noun, so that only names tell them apart

    @property
    def indefinite(self) -> str:
        """The words that introduce it: "a proud fox named Rusty"."""
        described = f"{self.adjective} {self.noun}" if self.adjective else self.noun
        suffix = f" named {self.name}" if self.name else ""
        return f"{article(described)} {described}{suffix}"

    def words(self, role: str) -> dict[str, str | tuple[str, ...]]:
        """Return what {role}, {role.a}, {role.he} and the others stand for."""
        the = f"the {self.noun}"
        he, him, his, himself = PRONOUNS[self.he]
        return {
            role: self._mentions(),
            f"{role}.a": self._introductions(),
            f"{role}.a0": self._subjects(),
            f"{role}.the": the,
            f"{role}.name": self.name or the,
            f"{role}.noun": self.noun,
            f"{role}.adjective": self.adjective or "little",
            f"{role}.home": self.home,
            f"{role}.food": self.food,
            f"{role}.place": self.place,
            f"{role}.he": he,
            f"{role}.him": him,
            f"{role}.his": his,
            f"{role}.himself": himself,
        }

    def _mentions(self) -> tuple[str, ...]:
        if self.name is None:
            return (f"the {self.noun}",)
        if self.is_twin:
            return (self.name,)
        return (self.name, self.name, self.name, f"the {self.noun}")

    def _introductions(self) -> tuple[str, ...]:
        described = f"{self.adjective} {self.noun}" if self.adjective else self.noun
        if self.name is None:
            return (f"a {described}",)
        return (
            f"a {described} named {self.name}",
            f"a {described} called {self.name}",
        )

    def _subjects(self) -> tuple[str, ...]:
        described = f"{self.adjective} {self.noun}" if self.adjective else self.noun
        plain = (f"a {self.noun}", f"a {described}")
        if self.name is None:
            return plain
        return (*plain, f"a {described} named {self.name}", f"{self.name} the {self.noun}")


@dataclass(frozen=True, slots=True)
class Cast:
    """All the parts of one story."""

    hero: Being
    other: Being
    thing: str
    place: Row
    food: str
    words: dict[str, str | tuple[str, ...]]


def draw_being(kind: str, rng: Random, *, is_named: bool) -> Being:
    """Return a random being of a kind: "animal", "child", "person" or "being"."""
    adjective = word("adjectives", rng) if rng.random() < 0.6 else None
    if kind == "child":
        return _child(adjective or word("adjectives", rng), rng)
    noun, he, home, food, place = _kind_row(kind, rng)
    name = _name(he, rng) if is_named else None
    if adjective in noun.split():
        adjective = None
    return Being(kind, noun, he, home, food, place, adjective, name)


def draw_cast(heroes: list[str], others: list[str], rng: Random, *, is_named: bool) -> Cast:
    """Return a cast whose members do not share a noun, a name, a place or a food."""
    hero = draw_being(rng.choice(heroes), rng, is_named=is_named)
    if is_named and rng.random() < _PAIR_SHARE:
        hero, other = _pair(hero, rng)
    else:
        other = _another(hero, others, rng)
    child2 = _child(word("adjectives", rng), rng)
    while child2.name in (hero.name, other.name):
        child2 = _child(word("adjectives", rng), rng)
    elder, elder_he = row("elders", rng)
    while hero.noun in elder or other.noun in elder:
        elder, elder_he = row("elders", rng)
    place, far, place2 = _places(hero, rng)
    (food, number), (food2, _) = rng.sample(TABLES["foods"], 2)
    thing, thing2 = rng.sample(COLUMNS["things"][0], 2)
    words = {
        **hero.words("hero"),
        **other.words("other"),
        **child2.words("child2"),
        **_thing_words("thing", thing, rng),
        **_thing_words("thing2", thing2, rng),
        **_place_words("place", place),
        **_place_words("far", far),
        **_place_words("place2", place2),
        "elder": elder,
        "elder.he": PRONOUNS[elder_he][0],
        "elder.him": PRONOUNS[elder_he][1],
        "food": food,
        "food.noun": food,
        "food.it": "them" if number == "many" else "it",
        "food2": food2,
        "crop": rng.choice(_CROPS),
        **_trait_words(rng),
    }
    return Cast(hero, other, thing, place, food, words)


def _pair(hero: Being, rng: Random) -> tuple[Being, Being]:
    """Return hero and another of its kind, told apart by name."""
    name = _name(hero.he, rng)
    while name == hero.name:
        name = _name(hero.he, rng)
    return replace(hero, is_twin=True), replace(hero, name=name, is_twin=True)


def _another(hero: Being, kinds: list[str], rng: Random) -> Being:
    """Return somebody whose noun and name are not the hero's."""
    while True:
        other = draw_being(rng.choice(kinds), rng, is_named=False)
        if other.noun != hero.noun and (other.name is None or other.name != hero.name):
            return other


def _kind_row(kind: str, rng: Random) -> tuple[str, str, str, str, str]:
    """Return noun, pronoun, home, food and place of a random member of the kind."""
    if kind == "animal":
        noun, home, food, _sound, _baby, place = row("animals", rng)
        he = "?"
    elif kind == "person":
        noun, he, home, food, _tool, place = row("people", rng)
    else:
        noun, he, home, food, place = row("beings", rng)
    if rng.random() < _INVENTED_SHARE:
        noun, he = invented(rng), "?"
    elif rng.random() < _STRANGER_SHARE:
        noun, he, home = _stranger(kind, rng)
    return noun, rng.choice(("he", "she")) if he == "?" else he, home, food, place


def _stranger(kind: str, rng: Random) -> tuple[str, str, str]:
    """Return noun, pronoun and home of somebody of whom the lexicon knows no more than the noun."""
    if kind == "animal":
        return (
            word("other_animals", rng),
            "?",
            rng.choice(("nest", "den", "cave", "hole", "hollow")),
        )
    if kind == "person":
        noun = word("other_people", rng)
        return noun, _HE_BY_NOUN.get(noun.split()[-1], "?"), rng.choice(("house", "hut", "cottage"))
    return word("things", rng), rng.choice(("it", "it", "?")), rng.choice(("box", "attic", "shed"))


def _child(adjective: str, rng: Random) -> Being:
    noun, he, names = rng.choice((("girl", "she", "girls"), ("boy", "he", "boys")))
    name = _name(he, rng) if rng.random() < 0.1 else word(names, rng)
    place = rng.choice(PLACES)[0]
    return Being("child", noun, he, "house", word("foods", rng), place, adjective, name)


def _name(he: str, rng: Random) -> str:
    chance = rng.random()
    if chance < 0.15:
        return invented(rng).capitalize()
    if chance < 0.6 or he == "it":
        return word("pet_names", rng)
    return word("girls" if he == "she" else "boys", rng)


def _places(hero: Being, rng: Random) -> list[Row]:
    places = rng.sample(PLACES, 3)
    own = [place for place in PLACES if place[0] == hero.place]
    if own and own[0] not in places and rng.random() < 0.6:
        places[0] = own[0]
    return places


def _trait_words(rng: Random) -> dict[str, str]:
    """Return what somebody may fear, dream of or do badly."""
    fear, fear2 = rng.sample(COLUMNS["fears"][0], 2)
    habit, cure = row("habits", rng)
    dream = word("dreams", rng)
    return {"fear": fear, "fear2": fear2, "habit": habit, "cure": cure, "dream": dream}


def _thing_words(role: str, noun: str, rng: Random) -> dict[str, str | tuple[str, ...]]:
    adjective = word("thing_adjectives", rng)
    while adjective in noun:
        adjective = word("thing_adjectives", rng)
    return {
        role: (f"the {noun}", f"the {noun}", f"the {adjective} {noun}"),
        f"{role}.a": (f"a {adjective} {noun}", f"a {adjective} {noun}", f"a {noun}"),
        f"{role}.a0": (f"a {noun}", f"a {adjective} {noun}"),
        f"{role}.noun": noun,
        f"{role}.color": adjective,
    }


def _place_words(role: str, place: Row) -> dict[str, str | tuple[str, ...]]:
    noun, inside, _things = place
    return {role: noun, f"{role}.noun": noun, f"{role}.in": inside, f"{role}.to": f"to the {noun}"}
