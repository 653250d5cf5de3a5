"""Stories: a plot of plots/*.txt told with a random cast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

from .cast import Cast, draw_cast
from .grammar import plural, tidy, title_case
from .template import HERE, Choice, Template, TemplateError, expand, lines, parse, read_phrases

_HEADERS = ("kinds", "heroes", "others", "themes", "about", "title")
_ASIDE_SHARE = 0.1  # of the steps of a plot, but its last, end in a line about weather or mood
_ANYONE = ["animal", "animal", "child", "person", "being"]


@dataclass(frozen=True, slots=True)
class Plot:
    """The skeleton of a story: who may be in it, and the ways to tell each of its steps."""

    name: str
    kinds: tuple[str, ...]
    heroes: tuple[str, ...]
    others: tuple[str, ...]
    themes: tuple[str, ...]
    abouts: Choice
    titles: Choice
    beats: tuple[tuple[Template, ...], ...]
    introducing: tuple[Template, ...]  # ways to begin that introduce a hero by name
    morals: Choice


@dataclass(frozen=True, slots=True)
class Story:
    """A story that has been told, and what an instruction may say about it."""

    kind: str
    plot: Plot
    cast: Cast
    title: str
    about: str
    paragraphs: tuple[str, ...]
    moral: str

    @property
    def text(self) -> str:
        """The story without its title and moral, paragraphs separated by blank lines."""
        return "\n\n".join(self.paragraphs)


@cache
def phrases() -> dict[str, Choice]:
    """Return the phrases that plots share."""
    return read_phrases("phrases.txt")


@cache
def plots(kind: str) -> tuple[Plot, ...]:
    """Return the plots that can be told as kind: "fable", "story" or "short"."""
    blocks: list[list[str]] = []
    for path in sorted((HERE / "plots").glob("*.txt")):
        for line in lines(path):
            if line.startswith("plot "):
                blocks.append([])
            blocks[-1].append(line)
    return tuple(plot for plot in map(_read, blocks) if kind in plot.kinds)


def tell(kind: str, rng: Random) -> Story:
    """Return a new story of kind "fable", "story" or "short"."""
    plot = rng.choice(plots(kind))
    is_named = kind == "story" and bool(plot.introducing) and rng.random() < 0.6
    cast = draw_cast(list(plot.heroes), list(plot.others), rng, is_named=is_named)
    return tell_with(plot, kind, cast, rng)


def tell_with(plot: Plot, kind: str, cast: Cast, rng: Random) -> Story:
    """Return plot told as kind with a given cast."""
    words = {**cast.words, "moral": tidy(_write(plot.morals, cast.words, rng))}
    words["moral"] = str(words["moral"])[:1].lower() + str(words["moral"])[1:]
    words["opening"] = _write(phrases()[f"opening_{cast.hero.kind}"], words, rng)
    beginnings = plot.introducing if cast.hero.name and plot.introducing else plot.beats[0]
    steps = [_step(beginnings, words, rng)]
    steps += [_step(beat, words, rng) for beat in plot.beats[1:-1]]
    steps.append(tidy(expand(rng.choice(plot.beats[-1]), words, phrases(), rng)))
    return Story(
        kind=kind,
        plot=plot,
        cast=cast,
        title=title_case(tidy(_write(plot.titles, words, rng))),
        about=_subject(plot, cast, words, " ".join(steps), rng),
        paragraphs=_paragraphs(steps, rng),
        moral=str(words["moral"]),
    )


def moral_line(story: Story, rng: Random) -> str:
    """Return a sentence that states the moral of story."""
    words = {**story.cast.words, "moral": story.moral}
    return tidy(_write(phrases()["moral_line"], words, rng))


def _step(ways: tuple[Template, ...], words: dict[str, str | tuple[str, ...]], rng: Random) -> str:
    text = expand(rng.choice(ways), words, phrases(), rng)
    if rng.random() < _ASIDE_SHARE:
        aside = phrases()["weather" if rng.random() < 0.5 else "feeling"]
        text = f"{text} {_write(aside, words, rng)}"
    return tidy(text)


def _write(choice: Choice, words: dict[str, str | tuple[str, ...]], rng: Random) -> str:
    return expand(rng.choice(choice.options), words, phrases(), rng)


def _subject(
    plot: Plot, cast: Cast, words: dict[str, str | tuple[str, ...]], text: str, rng: Random
) -> str:
    """Return what the story is about, as the object of "a story about"."""
    chance = rng.random()
    if cast.hero.is_twin and chance < 0.6:
        return _pair_subject(cast, rng)
    if chance < 0.08 and cast.thing in text:
        about = "{hero.a0} and {thing.a0}"
    elif chance < 0.16 and cast.place[0] in text:
        about = "{hero.a0} {place.in}"
    elif chance < 0.3 and cast.other.noun in text:
        about = "{hero.a0} and {other.a0}"
    elif chance < 0.62:
        about = "{hero.a0}"
    elif chance < 0.68:
        return rng.choice(plot.themes)
    else:
        return _as_object(_write(plot.abouts, words, rng))
    return _as_object(expand(parse(about), words, phrases(), rng))


def _pair_subject(cast: Cast, rng: Random) -> str:
    """Return "two snails", "two snails named Pip and Moss" or "Pip and Moss"."""
    names = f"{cast.hero.name} and {cast.other.name}"
    two = f"two {plural(cast.hero.noun)}"
    return rng.choice((two, two, f"{two} named {names}", names))


def _as_object(text: str) -> str:
    """Return text as it stands inside a sentence."""
    tidied = tidy(text)
    return tidied if text[:1].isupper() else tidied[:1].lower() + tidied[1:]


def _paragraphs(steps: list[str], rng: Random) -> tuple[str, ...]:
    """Return the steps joined to paragraphs of one to three, or to a single one."""
    if rng.random() < 0.2:
        return (" ".join(steps),)
    paragraphs: list[str] = []
    rest = list(steps)
    while rest:
        size = rng.choice((1, 1, 2, 2, 3))
        paragraphs.append(" ".join(rest[:size]))
        rest = rest[size:]
    return tuple(paragraphs)


def _read(block: list[str]) -> Plot:
    """Return the plot that a block of lines describes."""
    name = block[0].removeprefix("plot ")
    headers: dict[str, list[str]] = {"others": _ANYONE}
    sections: list[tuple[str, list[str]]] = []
    for line in block[1:]:
        if line.startswith("- "):
            sections[-1][1].append(line[2:])
        elif line in ("beat", "moral"):
            sections.append((line, []))
        else:
            key, _, value = line.partition(": ")
            if key not in _HEADERS:
                raise TemplateError(f"plot {name}: {key!r} is none of {', '.join(_HEADERS)}")
            parts = value.split(" | ") if key in ("about", "title", "themes") else value.split()
            headers[key] = parts
    beats = [tuple(map(parse, ways)) for kind, ways in sections if kind == "beat"]
    introducing = [way for way in next(ways for _, ways in sections) if _introduces(way)]
    (morals,) = [ways for kind, ways in sections if kind == "moral"]
    return Plot(
        name=name,
        kinds=tuple(headers["kinds"]),
        heroes=tuple(headers["heroes"]),
        others=tuple(headers["others"]),
        themes=tuple(headers["themes"]),
        abouts=Choice(tuple(map(parse, headers["about"]))),
        titles=Choice(tuple(map(parse, headers["title"]))),
        beats=tuple(beats),
        introducing=tuple(map(parse, introducing)),
        morals=Choice(tuple(map(parse, morals))),
    )


def _introduces(way: str) -> bool:
    return any(reference in way for reference in ("{opening}", "{hero.a}", "{hero.A}"))
