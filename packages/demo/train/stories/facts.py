"""Questions about small facts, sums and short texts, with their answers."""

from random import Random

from .cast import PLACES
from .chat import Chat, ask
from .grammar import capital, lower, plural, tidy
from .lexicon import COLUMNS, row
from .words import NUMBERS, fact_rows


def fact(rng: Random) -> Chat:
    """Return a question from the tables of facts, and its answer."""
    makers = (
        _animal_fact, _animal_fact, _colour, _is_colour, _opposite, _legs, _sequence, _sequence,
        _riddle, _can, _bigger, _what, _what,
    )  # fmt: skip
    question, answer = rng.choice(makers)(rng)
    return ask("fact", {"question": question}, answer, rng)


def reading(rng: Random) -> Chat:
    """Return a few sentences with a question about them, and the answer that they hold."""
    first, second = rng.sample(COLUMNS["girls"][0] + COLUMNS["boys"][0], 2)
    one, two = rng.sample(COLUMNS["things"][0], 2)
    colour, colour2 = rng.sample(("red", "blue", "green", "yellow", "white", "black", "brown"), 2)
    here, there = (place[1] for place in rng.sample(PLACES, 2))
    told, question, answer = rng.choice(
        (
            (
                f"{first} has a {colour} {one}. {second} has a {colour2} {two}.",
                f"What colour is the {two}?",
                f"The {two} is {colour2}.",
            ),
            (
                f"{first} has a {one} and {second} has a {two}.",
                f"Who has the {one}?",
                f"{first} has the {one}.",
            ),
            (
                f"{first} is {here}. {second} is {there}.",
                f"Where is {second}?",
                f"{second} is {there}.",
            ),
            (
                f"{first} lost a {one} {here}. {second} found it and gave it back.",
                f"Who found the {one}?",
                f"{second} found the {one}.",
            ),
            (
                f"{first} went to the market and bought a {one} and a {two}.",
                f"What did {first} buy?",
                f"{first} bought a {one} and a {two}.",
            ),
        )
    )
    return ask("fact", {"question": tidy(f"{told} {question}")}, tidy(answer), rng)


def count(rng: Random) -> Chat:
    """Return a request to count, and the numbers in order."""
    first = rng.choice((1, 1, 1, 2, 3, 5))
    last = first + rng.randrange(2, 11)
    start = "" if first == 1 else f" from {NUMBERS[first]}"
    question = rng.choice((f"Count{start} to {NUMBERS[last]}.", f"Please count{start} to {last}."))
    answer = ", ".join(NUMBERS[first : last + 1])
    return ask("fact", {"question": question}, f"{capital(answer)}.", rng)


def sum_of_two(rng: Random) -> Chat:
    """Return a small sum in words or digits, and its result."""
    first, second = rng.randrange(11), rng.randrange(11)
    total = first + second
    if rng.random() < 0.5:
        question = f"What is {NUMBERS[first]} plus {NUMBERS[second]}?"
        sentence = f"{NUMBERS[first]} plus {NUMBERS[second]} is {NUMBERS[total]}."
        return ask("fact", {"question": question}, capital(sentence), rng)
    question = rng.choice((f"What is {first} + {second}?", f"{first} + {second} = ?"))
    return ask("fact", {"question": question}, f"{first} + {second} = {total}", rng)


def _animal_fact(rng: Random) -> tuple[str, str]:
    noun, home, _food, sound, baby, place = row("animals", rng)
    a_noun = lower(tidy(f"a {noun}"))
    return rng.choice(
        (
            (f"What sound does {a_noun} make?", _sound(noun, sound)),
            (f"What does {a_noun} say?", _sound(noun, sound)),
            (f"Where does {a_noun} live?", tidy(f"A {noun} lives in a {home}.")),
            (f"What do you call a baby {noun}?", tidy(f"A baby {noun} is called a {baby}.")),
            (f"What is the young of {a_noun} called?", tidy(f"It is called a {baby}.")),
            (f"What is the plural of {noun}?", f'The plural of "{noun}" is "{plural(noun)}".'),
            (f"Where can I see {a_noun}?", f"You may see one near the {place}."),
        )
    )


def _sound(noun: str, sound: str) -> str:
    return tidy(f"A {noun} {sound}.")


def _colour(rng: Random) -> tuple[str, str]:
    thing, colour = rng.choice(fact_rows("colours"))
    question = rng.choice((f"What colour is {thing}?", f"What color is {thing}?"))
    return question, f"{capital(thing)} is {colour}."


def _is_colour(rng: Random) -> tuple[str, str]:
    thing, colour = rng.choice(fact_rows("colours"))
    other = rng.choice(("red", "blue", "green", "white", "black", colour, colour, colour))
    if other == colour:
        return f"Is {thing} {colour}?", f"Yes, {thing} is {colour}."
    return f"Is {thing} {other}?", f"No, {thing} is {colour}."


def _can(rng: Random) -> tuple[str, str]:
    who, what, answer = rng.choice(fact_rows("can"))
    verb = "can" if answer == "yes" else "cannot"
    return f"Can {who} {what}?", f"{capital(answer)}, {who} {verb} {what}."


def _bigger(rng: Random) -> tuple[str, str]:
    sizes = [thing for (thing,) in fact_rows("sizes")]
    small, big = sorted(rng.sample(range(len(sizes)), 2))
    pair = rng.choice(((small, big), (big, small)))
    asked = f"{sizes[pair[0]]} or {sizes[pair[1]]}"
    if rng.random() < 0.5:
        return f"Which is bigger, {asked}?", f"{capital(sizes[big])} is bigger than {sizes[small]}."
    return f"Which is smaller, {asked}?", f"{capital(sizes[small])} is smaller than {sizes[big]}."


def _what(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        thing, answer = rng.choice(fact_rows("what"))
        return rng.choice((f"What is {thing}?", f"What does {thing.split()[-1]} mean?")), answer
    noun, home, food, _sound, _baby, place = row("animals", rng)
    answer = f"A {noun} is an animal. It lives in a {home} near the {place} and likes {food}."
    return f"What is {lower(tidy(f'a {noun}'))}?", tidy(answer)


def _opposite(rng: Random) -> tuple[str, str]:
    first, second = rng.choice(fact_rows("opposites"))
    if rng.random() < 0.5 and second not in ("light", "old", "dark", "black"):
        first, second = second, first
    if rng.random() < 0.5 and first not in ("hard", "light"):
        return f"What is the opposite of {first}?", f"The opposite of {first} is {second}."
    return f'Give me the opposite of "{first}".', f"{capital(second)}."


def _legs(rng: Random) -> tuple[str, str]:
    animal, number = rng.choice(fact_rows("legs"))
    return f"How many legs does {animal} have?", f"{capital(animal)} has {number} legs."


def _sequence(rng: Random) -> tuple[str, str]:
    question, answer = rng.choice(fact_rows("sequences"))
    return question, answer


def _riddle(rng: Random) -> tuple[str, str]:
    question, answer = rng.choice(fact_rows("riddle"))
    if rng.random() < 0.5:
        return "Tell me a riddle.", f"{question} (The answer: {lower(answer)})"
    return question, answer
