"""Conversations: what people ask of the model, and the answers, as lists of turns."""

import re
from collections.abc import Callable
from random import Random

from . import facts, small_talk, writing
from .chat import Chat, Turn, ask, pick
from .grammar import article, capital, listing, tidy
from .lexicon import word
from .plots import Story, moral_line, tell

_MORAL_SHARE = {"fable": 0.9, "story": 0.1, "short": 0.3}
_TITLE_SHARE = 0.12  # of the answers begin with the story's title
_SYSTEM_SHARE = 0.15


def draw_chat(rng: Random) -> Chat:
    """Return a random conversation, with a system message now and then."""
    makers, weights = zip(*_KINDS, strict=True)
    chat: Chat = rng.choices(makers, weights)[0](rng)
    if rng.random() < _SYSTEM_SHARE:
        chat = [Turn("system", pick("system", {}, rng)), *chat]
    return chat


def story_chat(rng: Random) -> Chat:
    """Return a request for a story, the story, and perhaps questions about it."""
    story = tell(rng.choice(("fable", "fable", "story", "story", "story", "short")), rng)
    chat = [Turn("user", _request(story, rng)), Turn("assistant", _answer(story, rng))]
    if rng.random() < 0.3:
        chat += _questions(story, rng)
    return chat


def many_stories(rng: Random) -> Chat:
    """Return a long conversation in which one story follows another."""
    chat = story_chat(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 9, 18))):
        story = tell(rng.choice(("fable", "story", "short")), rng)
        if rng.random() < 0.35:
            kind = "fable" if story.kind == "fable" else "story"
            prompt = pick("ask_more", {"kind": kind}, rng)
        else:
            prompt = _request(story, rng)
        chat += [Turn("user", prompt), Turn("assistant", _answer(story, rng))]
        if rng.random() < 0.2:
            chat += _questions(story, rng)
    return chat


def continuation(rng: Random) -> Chat:
    """Return the beginning of a story as the request, and the rest of it as the answer."""
    story = tell(rng.choice(("fable", "story", "story")), rng)
    ends = [i + 2 for i in range(len(story.text)) if story.text[i : i + 2] in (". ", ".\n")]
    cut = rng.choice(ends[: max(1, len(ends) // 2)]) if ends else len(story.text) // 2
    start, rest = story.text[:cut].strip(), story.text[cut:].strip()
    return ask("ask_continue", {"start": start}, rest, rng)


def with_words(rng: Random) -> Chat:
    """Return a request for a story in which given words occur, and the story."""
    story = tell(rng.choice(("story", "story", "fable")), rng)
    candidates = [story.cast.hero.noun, story.cast.other.noun, story.cast.thing]
    candidates += [story.cast.place[0], story.cast.food]
    present = [word for word in dict.fromkeys(candidates) if word in story.text]
    if len(present) < 2:
        return with_words(rng)
    words = rng.sample(present, min(len(present), rng.choice((2, 3, 3))))
    return ask("ask_words", {"words": listing(words)}, _answer(story, rng), rng)


def titles(rng: Random) -> Chat:
    """Return a request for a title, and one."""
    story = tell("fable", rng)
    kind = rng.choice(("fable", "story"))
    return ask("ask_title", {"about": story.about, "kind": kind}, story.title, rng)


def long_story(rng: Random) -> Chat:
    """Return a request for a long story, and one in chapters."""
    text, about = chapters(rng)
    return ask("ask_long", {"about": about}, text, rng)


def chapters(rng: Random) -> tuple[str, str]:
    """Return a story in chapters, each with its own title, and what the first one is about."""
    stories = [tell("story", rng) for _ in range(rng.choice((2, 3, 3, 4, 6, 12, 24)))]
    parts = [
        f"Chapter {number}: {story.title}\n\n{story.text}"
        for number, story in enumerate(stories, 1)
    ]
    return "\n\n".join(parts), stories[0].about


def plain_story(rng: Random) -> str:
    """Return a story as running text, as a book would print it."""
    story = tell(rng.choice(("fable", "story", "story", "short")), rng)
    title = f"{story.title}\n\n" if rng.random() < 0.4 else ""
    moral = f"\n\n{moral_line(story, rng)}" if rng.random() < _MORAL_SHARE[story.kind] else ""
    return title + story.text + moral


def _request(story: Story, rng: Random) -> str:
    kind = "fable" if story.kind == "fable" else "story"
    words = {"about": story.about, "kind": kind}
    if rng.random() < 0.1:
        return pick("ask_any", words, rng)
    return pick(f"ask_{story.kind}", words, rng)


def _answer(story: Story, rng: Random) -> str:
    title = f"{story.title}\n\n" if rng.random() < _TITLE_SHARE else ""
    moral = f"\n\n{moral_line(story, rng)}" if rng.random() < _MORAL_SHARE[story.kind] else ""
    return title + story.text + moral


def _questions(story: Story, rng: Random) -> Chat:
    """Return one or two turns that follow a story."""
    hero, other = story.cast.hero, story.cast.other
    candidates: list[Chat] = [
        ask("ask_moral", {}, tidy(f"The moral is that {story.moral}."), rng),
        ask("ask_who", {}, tidy(f"The story is about {hero.indefinite}."), rng),
        ask("praise", {}, pick("praise_answer", {}, rng), rng),
    ]
    if story.cast.words["other"] != story.cast.words["hero"] and other.noun in story.text:
        both = tidy(f"The story is about {hero.indefinite} and {other.indefinite}.")
        candidates.append(ask("ask_who", {}, both, rng))
    if hero.name is None and hero.kind == "animal":
        candidates.append(_told_again(story, rng))
    return rng.choice(candidates)


def _told_again(story: Story, rng: Random) -> Chat:
    """Return the request to put another animal in the hero's place, and the story so changed."""
    old, new = story.cast.hero.noun, word("animals", rng)
    words = {"a_old": f"{article(old)} {old}", "a_new": f"{article(new)} {new}"}
    changed = re.sub(
        rf"\b(?:(an?|An?) )?({old}|{capital(old)})\b",
        lambda found: _swapped(found, new),
        story.text,
    )
    return ask("ask_again", words, changed, rng)


def _swapped(found: re.Match[str], new: str) -> str:
    """Return new in the place of a noun, with the article that it needs."""
    noun = capital(new) if found[2][0].isupper() else new
    return f"{found[1][0]}{article(new)[1:]} {noun}" if found[1] else noun


_KINDS: list[tuple[Callable[[Random], Chat], float]] = [
    (story_chat, 40),
    (many_stories, 7),
    (continuation, 12),
    (with_words, 5),
    (long_story, 2),
    (titles, 4),
    (small_talk.greeting, 4),
    (small_talk.who_are_you, 4),
    (small_talk.several, 5),
    (small_talk.unknown, 4),
    (facts.fact, 12),
    (facts.reading, 5),
    (facts.count, 2),
    (facts.sum_of_two, 3),
    (writing.say, 5),
    (writing.sentence, 4),
    (writing.list_place, 5),
    (writing.list_kind, 4),
    (writing.name, 5),
    (writing.poem, 5),
    (writing.letter, 8),
    (writing.describe, 4),
    (writing.talk, 6),
]
