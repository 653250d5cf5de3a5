"""A spec file, read: TOML to a frozen ModelSpec, checked word by word against the vocabulary."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import TypeAlias

from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec.language.parse import is_computed, parse
from spaninfer_engine.spec.language.syntax import BadValue, Chain, Expr
from spaninfer_engine.spec.vocabulary import KINDS, SECTIONS, TOP
from spaninfer_engine.spec.vocabulary.words import REQUIRED, Word

Find: TypeAlias = Callable[[str, Traversable], Traversable | None]

MAX_ANCESTORS = 8
GROWING = {
    ("config", "ignore"),
    ("config", "unused"),
    ("weights", "ignore"),
}  # a child adds to its parent's list
OF_TOWERS = ("media", "vision", "audio")  # sections, and those inside them


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of a spec: as written, parsed where it is computed, and the file that says it."""

    source: str
    text: object
    tree: Chain | Expr | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """An architecture as its file describes it, before any config.json is seen.

    `entries` holds what the file and its ancestors say; `entry()` adds the vocabulary's defaults.
    """

    name: str
    source: str
    hf: tuple[str, ...]
    model_type: tuple[str, ...]
    needs: tuple[str, ...]  # keys of config.json, or key=value
    kind: str
    text: tuple[str, ...]
    checked: tuple[str, ...]
    entries: Mapping[tuple[str, str], Entry]

    def entry(self, section: str, key: str) -> Entry:
        """Return what holds for a key: said here, by an ancestor, or by default."""
        return self.entries.get((section, key)) or default(section, key)

    def said(self, section: str) -> Mapping[str, Entry]:
        """Return what the file and its ancestors say in a section, without defaults."""
        return {key: entry for (place, key), entry in self.entries.items() if place == section}


def read(file: Traversable, find: Find) -> ModelSpec:
    """Return the spec of a TOML file; `find` gives the file of a name that another builds on."""
    return _read(file, find, ())


def read_names(file: Traversable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `hf` and `model_type` of a TOML file, which no file inherits, and read nothing else.

    To find one architecture takes the names of all: 40 ms of CPU time, and all that they say 120
    (EPYC Zen 4).
    """
    return _names(file.name, _toml(file))


def _read(file: Traversable, find: Find, below: tuple[Traversable, ...]) -> ModelSpec:
    if file in below or len(below) > MAX_ANCESTORS:
        chain = " -> ".join(each.name.removesuffix(".toml") for each in (*below, file))
        raise SpecError(file.name, "", "inherits", f"{chain} does not end")
    words = _toml(file)
    entries = dict(_entries(words, file.name))
    top = {key: value for key, value in words.items() if not isinstance(value, dict)}
    _known(file.name, "", top, TOP)
    hf, model_type = _names(file.name, top)
    text, kind = _texts(file.name, "text", top), top.get("kind")
    above = {
        key: _read(_ancestor(file, key, top[key], find), find, (*below, file))
        for key in ("inherits", "tower")
        if key in top
    }
    if "tower" in above:
        entries = {**_of_towers(above["tower"]), **entries}
    if "inherits" in above:
        parent = above["inherits"]
        entries = {**parent.entries, **_grown(parent.entry, entries)}
        kind, text = kind or parent.kind, text or parent.text
    else:
        entries = {**entries, **_grown(default, entries)}
    kind = kind or "decoder"
    if kind not in KINDS:
        raise SpecError(file.name, "", "kind", f"expected one of {', '.join(KINDS)}, got {kind!r}")
    checked = _texts(file.name, "checked", top)
    return ModelSpec(
        name=_name(file.name),
        source=file.name,
        hf=hf,
        model_type=model_type,
        needs=_texts(file.name, "needs", top),
        kind=kind,
        text=text,
        checked=checked,
        entries=MappingProxyType(entries),
    )


def _name(source: str) -> str:
    """Return the architecture's name."""
    return source.removesuffix(".toml")


def _names(source: str, top: Mapping[str, object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _texts(source, "hf", top), _texts(source, "model_type", top) or (_name(source),)


def _of_towers(spec: ModelSpec) -> dict[tuple[str, str], Entry]:
    """Return what a spec says about its towers and the tokens of media."""
    return {
        place: entry
        for place, entry in spec.entries.items()
        if place[0].partition(".")[0] in OF_TOWERS
    }


def _grown(
    above: Callable[[str, str], Entry], entries: dict[tuple[str, str], Entry]
) -> dict[tuple[str, str], Entry]:
    """Return the entries of a file, with lists that grow along the ancestors grown."""
    grown = dict(entries)
    for place in GROWING & entries.keys():
        older, newer = above(*place).text, entries[place].text
        if isinstance(older, tuple) and isinstance(newer, tuple):
            grown[place] = replace(entries[place], text=older + newer)
    return grown


_LISTED = "; `spaninfer spec list` shows those that are"


def _ancestor(file: Traversable, key: str, name: object, find: Find) -> Traversable:
    found = find(name, file) if isinstance(name, str) else None
    if found is None:
        raise SpecError(file.name, "", key, f"no architecture is called {name!r}{_LISTED}")
    return found


def _toml(file: Traversable) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(file.name, "", "file", f"is not TOML: {error}") from error
    except OSError as error:
        raise SpecError(file.name, "", "file", f"cannot be read: {error.strerror}") from error


def _texts(source: str, key: str, top: Mapping[str, object]) -> tuple[str, ...]:
    value = top.get(key, [])
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise SpecError(source, "", key, f"expected texts, got {value!r}")
    return tuple(items)


def _entries(
    words: Mapping[str, object], source: str, above: str = ""
) -> Iterable[tuple[tuple[str, str], Entry]]:
    """Yield every key of every section, sections inside of sections included."""
    for name, content in words.items():
        section = f"{above}.{name}" if above else name
        if not isinstance(content, dict):
            continue
        _known(source, "", [section], SECTIONS)
        says = SECTIONS[section]
        for key, value in content.items():
            if isinstance(value, dict) and f"{section}.{key}" in SECTIONS:
                continue
            if not says.is_open:
                _known(source, section, [key], says.keys)
            yield (section, key), _entry(source, section, key, value)
        yield from _entries(
            {key: value for key, value in content.items() if f"{section}.{key}" in SECTIONS},
            source,
            section,
        )


def _known(source: str, section: str, words: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first word that is not among the known ones."""
    allowed = list(known)
    for word in words:
        if word not in allowed:
            near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(allowed)}"
            what = "key" if section else "section or key"
            raise SpecError(source, section, word, f"there is no such {what}; {hint}")


def _entry(source: str, section: str, key: str, value: object) -> Entry:
    text = frozen(value)
    if isinstance(text, tuple) and any(
        isinstance(item, str) and is_computed(item) for item in text
    ):
        raise SpecError(source, section, key, "items of lists are not computed")
    if not isinstance(text, str):
        return Entry(source, text)
    try:
        tree = parse(text) if is_computed(text) else None
    except BadValue as error:
        raise SpecError(source, section, key, f"{text!r}: {error}") from error
    return Entry(source, None if text == "null" else text, tree)


@functools.cache
def default(section: str, key: str) -> Entry:
    """Return the vocabulary's entry for a key that no file says."""
    word: Word = SECTIONS[section].keys[key]
    if word.default is REQUIRED:
        return Entry("vocabulary", REQUIRED)
    return _entry("vocabulary", section, key, word.default)


def frozen(value: object) -> object:
    """Return a TOML or JSON value with tuples for lists and read-only tables."""
    match value:
        case list() | tuple():
            return tuple(frozen(item) for item in value)
        case Mapping():
            return MappingProxyType({str(key): frozen(item) for key, item in value.items()})
        case _:
            return value
