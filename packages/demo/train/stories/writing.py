"""Requests for small texts that are no stories: letters, poems, lists, names, dialogues."""

from random import Random

from .cast import PLACES, PRONOUNS, draw_being
from .chat import Chat, ask, pick, texts
from .grammar import capital, lower, tidy
from .lexicon import COLUMNS, invented, word
from .template import expand
from .words import NUMBERS, anybody, as_list, fact_rows, random_words


def letter(rng: Random) -> Chat:
    """Return a request for a letter from one being to another, and the letter."""
    kinds = ("animal", "child", "person", "being")
    sender = draw_being(rng.choice(kinds), rng, is_named=rng.random() < 0.3)
    reader = draw_being(rng.choice(kinds), rng, is_named=rng.random() < 0.3)
    words = {**random_words(rng), "home": sender.home}
    parts = [pick("letter_open", words, rng)]
    parts += [
        pick("letter_news", {**words, **random_words(rng)}, rng) for _ in range(rng.choice((1, 2)))
    ]
    parts.append(pick("letter_end", words, rng))
    body = "\n\n".join(parts) if rng.random() < 0.6 else " ".join(parts)
    greeting_name = reader.name or capital(reader.noun)
    signature = sender.name or f"The {capital(sender.noun)}"
    text = f"Dear {greeting_name},\n\n{body}\n\n{pick('letter_close', {}, rng)}\n{signature}"
    names = {
        "sender": _mention(sender.name, sender.noun, rng),
        "reader": _mention(reader.name, reader.noun, rng),
    }
    return ask("ask_letter", names, text, rng)


def poem(rng: Random) -> Chat:
    """Return a request for a poem, and four to six rhymed lines."""
    noun = rng.choice((word("animals", rng), word("animals", rng), word("beings", rng)))
    noun = invented(rng) if rng.random() < 0.05 else noun
    a_noun = tidy(f"a {noun}")
    keys = (
        ("verse_one", "verse_two", "verse_three")
        if rng.random() < 0.7
        else ("verse_one", "verse_two")
    )
    couplets = [pick(key, {"a_noun": a_noun[:1].lower() + a_noun[1:]}, rng) for key in keys]
    rows = [row.strip() for couplet in couplets for row in couplet.split(" / ")]
    return ask("ask_poem", {"about": lower(a_noun)}, "\n".join(map(capital, rows)), rng)


def talk(rng: Random) -> Chat:
    """Return a request for a dialogue between two beings, and the dialogue, line by line."""
    kinds = ("animal", "animal", "person", "being", "child")
    first, second = (draw_being(rng.choice(kinds), rng, is_named=False) for _ in range(2))
    speakers = [being.name or f"The {being.noun}" for being in (first, second)]
    middle = rng.sample(texts()["talk_middle"].options, rng.choice((0, 1, 1, 2, 3)))
    openings, endings = texts()["talk_open"].options, texts()["talk_end"].options
    exchanges = [rng.choice(openings), *middle, rng.choice(endings)]
    said = [expand(exchange, random_words(rng), texts(), rng).split("|") for exchange in exchanges]
    rows = [
        f"{speaker}: {tidy(text)}"
        for pair in said
        for speaker, text in zip(speakers, pair, strict=True)
    ]
    names = {
        "first": _mention(first.name, first.noun, rng),
        "second": _mention(second.name, second.noun, rng),
    }
    return ask("ask_talk", names, "\n".join(rows), rng)


def describe(rng: Random) -> Chat:
    """Return a request to describe somebody, and a few sentences about them."""
    being = draw_being(rng.choice(("animal", "person", "being")), rng, is_named=False)
    words = {
        **random_words(rng),
        "owner": being.indefinite,
        "he": capital(being.he),
        "he_low": being.he,
        "him": PRONOUNS[being.he][1],
        "home": being.home,
        "food": being.food,
        "place": being.place,
    }
    answer = pick("describe", {**words, "owner": f"The {being.noun}"}, rng)
    return ask("ask_describe", words, answer, rng)


def list_place(rng: Random) -> Chat:
    """Return a request for things found in a place, and a list of them."""
    _noun, inside, things = rng.choice(PLACES)
    found = things.split(", ")
    count = rng.choice((2, 3, 3, 3, 4, 5))
    words = {"count": NUMBERS[count], "inside": inside}
    return ask("ask_list_place", words, as_list(rng.sample(found, count), rng), rng)


def list_kind(rng: Random) -> Chat:
    """Return a request for members of a kind, and a list of them."""
    kind, members = rng.choice(fact_rows("kinds"))
    found = members.split(", ")
    count = min(rng.choice((2, 3, 3, 4, 5)), len(found))
    words = {"count": NUMBERS[count], "kind": kind}
    return ask("ask_list_kind", words, as_list(rng.sample(found, count), rng), rng)


def name(rng: Random) -> Chat:
    """Return a request for a name or several, and names."""
    being = draw_being(rng.choice(("animal", "animal", "being", "person")), rng, is_named=False)
    words = {"owner": being.indefinite, "noun": being.noun, "him": "it"}
    if rng.random() < 0.25:
        count = rng.choice((2, 3, 3, 4, 5))
        names = rng.sample(
            COLUMNS["pet_names"][0] + COLUMNS["girls"][0] + COLUMNS["boys"][0], count
        )
        return ask("ask_names", {**words, "count": NUMBERS[count]}, as_list(names, rng), rng)
    words["name"] = anybody(rng)
    return ask("ask_name", words, pick("name_answer", words, rng), rng)


def say(rng: Random) -> Chat:
    """Return a request to repeat a sentence, and the sentence."""
    sentence = pick("sentence", random_words(rng), rng)
    if rng.random() < 0.3:
        sentence = " ".join(invented(rng) for _ in range(rng.choice((1, 2, 3, 5))))
    return ask("ask_say", {"what": f'"{sentence}"'}, sentence, rng)


def sentence(rng: Random) -> Chat:
    """Return a request for a sentence with a given word, and such a sentence."""
    wanted = invented(rng) if rng.random() < 0.15 else word("things", rng)
    words = {**random_words(rng), "word": wanted}
    return ask("ask_sentence", words, pick("sentence_thing", words, rng), rng)


def _mention(name: str | None, noun: str, rng: Random) -> str:
    if name:
        return rng.choice((name, f"{name} the {noun}"))
    return rng.choice((lower(tidy(f"a {noun}")), f"the {noun}"))
