"""The values of a spec for one config.json: computed when first read, checked and kept."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from spaninfer_engine.errors import SpecError, shown
from spaninfer_engine.spec.language.syntax import BadValue, Name
from spaninfer_engine.spec.language.values import evaluate, mentions
from spaninfer_engine.spec.read import Entry, ModelSpec, frozen
from spaninfer_engine.spec.vocabulary import SECTIONS
from spaninfer_engine.spec.vocabulary.words import REQUIRED, Word

_SHOWN = 4  # config keys that an error repeats


class Scope:
    """A spec and a config together.

    Every config key that a used value mentions counts as read, also where another alternative was
    taken: the spec's author thought of it.
    """

    def __init__(self, spec: ModelSpec, config: Mapping[str, object]) -> None:
        self.spec = spec
        self.config = _table(frozen(config))
        self.read: set[str] = set()
        self._layer: int | None = None
        self._kept: dict[tuple[str, str, int | None], object] = {}
        self._open: list[str] = []  # names being computed, to see circles

    def integer(self, section: str, key: str) -> int:
        """Return an integer."""
        value = self.value(section, key)
        assert isinstance(value, int)
        return value

    def number(self, section: str, key: str) -> float:
        """Return a number as a float."""
        value = self.value(section, key)
        assert isinstance(value, float)
        return value

    def flag(self, section: str, key: str, layer: int | None = None) -> bool:
        """Return true or false, for one layer where the key differs by layer."""
        value = self.value(section, key, layer)
        assert isinstance(value, bool)
        return value

    def text(self, section: str, key: str) -> str:
        """Return a text or a word of a choice."""
        value = self.value(section, key)
        assert isinstance(value, str)
        return value

    def texts(self, section: str, key: str) -> tuple[str, ...]:
        """Return alternatives, the first of them the usual one."""
        value = self.value(section, key)
        assert isinstance(value, tuple)
        return value

    def optional_integer(self, section: str, key: str) -> int | None:
        """Return an integer, or None for null."""
        return None if self.value(section, key) is None else self.integer(section, key)

    def optional_number(self, section: str, key: str) -> float | None:
        """Return a float, or None for null."""
        return None if self.value(section, key) is None else self.number(section, key)

    def optional_table(self, section: str, key: str) -> Mapping[str, object] | None:
        """Return a table, or None for null."""
        value = self.value(section, key)
        return None if value is None else _table(value)

    def value(self, section: str, key: str, layer: int | None = None) -> object:
        """Return the checked value of a key; SpecError where it cannot be computed."""
        place = (section, key, layer)
        if place not in self._kept:
            word = SECTIONS[section].keys[key]
            assert (layer is None) != word.per_layer
            self._layer = layer
            self._kept[place] = self._computed(section, key, word)
        return self._kept[place]

    def account_for(self, section: str) -> None:
        """Count the config keys of a section as read, whose values no layer of this model asks."""
        for key in SECTIONS[section].keys:
            self._account(self.spec.entry(section, key))

    def unasked(self) -> tuple[tuple[str, str], ...]:
        """Return the keys that the spec's own file says and that nothing has read so far."""
        asked = {(section, key) for section, key, _ in self._kept}
        return tuple(
            place
            for place, entry in self.spec.entries.items()
            if entry.source == self.spec.source
            and place not in asked
            and place[0] not in ("config", "config.expect", "config.default")
        )

    def error(self, section: str, key: str, problem: str) -> SpecError:
        """Return the error that blames a value of the spec."""
        entry = self.spec.entry(section, key)
        written = f"{entry.text!r}: " if entry.tree is not None else ""
        why = written + problem + self._config_values(entry) + self._assumed(entry)
        return SpecError(entry.source, section, key, why)

    def _assumed(self, entry: Entry) -> str:
        """Return what a value took from the spec because config.json does not say it."""
        keys = mentions(entry.tree) if entry.tree is not None else ()
        said = self.spec.said("config.default")
        parts = [
            f"{key.path}, which means {said[key.path].text!r} in {said[key.path].source}"
            for key in keys
            if key.path in said and key.path not in self.config
        ]
        return f" (config.json has no {', no '.join(parts)})" if parts else ""

    def _config_values(self, entry: Entry) -> str:
        """Return what config.json says of the keys that a value is computed from."""
        paths = list(dict.fromkeys(self._mentioned(entry, set())))
        values = [
            f"{path} = {shown(value)}" for path in paths if (value := self.key(path)) is not None
        ]
        return f"; config.json says {', '.join(values[:_SHOWN])}" if values else ""

    def _mentioned(self, entry: Entry, seen: set[str]) -> Iterator[str]:
        """Yield every config key below a value, also those behind names."""
        for mentioned in mentions(entry.tree) if entry.tree is not None else ():
            named = self._named(mentioned.path) if isinstance(mentioned, Name) else None
            if named is None:
                yield mentioned.path
            elif mentioned.path not in seen:
                seen.add(mentioned.path)
                yield from self._mentioned(named, seen)

    def _computed(self, section: str, key: str, word: Word) -> object:
        entry = self.spec.entry(section, key)
        if entry.text is REQUIRED:
            missing = f"{self.spec.source} must say it: {word.says} ({word.type.name})"
            raise SpecError(self.spec.source, section, key, missing)
        try:
            return word.type.accept(self._raw(entry))
        except BadValue as error:
            raise self.error(section, key, str(error)) from error

    def _raw(self, entry: Entry) -> object:
        if entry.tree is None:
            return entry.text
        self._account(entry)
        return evaluate(entry.tree, self)

    def _account(self, entry: Entry) -> None:
        """Count every config key below a value as read, also those behind names."""
        self.read.update(self._mentioned(entry, set()))

    # What expressions see: values.Lookup.

    def name(self, path: str) -> object:
        """Return what a name stands for: `i`, a name of [let] or [dims], or a config key."""
        if path == "i":
            if self._layer is None:
                raise BadValue("`i` has a meaning only in keys that may differ by layer")
            return self._layer
        if path in self._open:
            raise BadValue(f"{' -> '.join((*self._open, path))} does not end")
        entry = self._named(path)
        if entry is not None:
            return self._inner(path, entry)
        if (value := self.key(path)) is None:
            problem = f"{path} is no name of [let] or [dims], and no key of config.json"
            raise BadValue(problem + self._near(path))
        return value

    def key(self, path: str) -> object:
        """Return the value of a dotted config key; where it is absent, the spec's default or None.

        A key that is null is not absent.
        """
        value: object = self.config
        parts = path.split(".")
        for at, part in enumerate(parts):
            if not isinstance(value, Mapping) or part not in value:
                return self._default_of(parts, at + 1)
            value = value[part]
        return value

    def _default_of(self, parts: Sequence[str], absent: int) -> object:
        """Return the default of a path, or of a table that holds it, `absent` parts of it long."""
        for end in range(len(parts), absent - 1, -1):
            entry = self.spec.entries.get(("config.default", ".".join(parts[:end])))
            if entry is None:
                continue
            value: object = entry.text
            for part in parts[end:]:
                value = value.get(part) if isinstance(value, Mapping) else None
            return value
        return None

    def _near(self, path: str) -> str:
        known = [*self.spec.said("let"), *SECTIONS["dims"].keys]
        near = difflib.get_close_matches(path, known, n=1)
        return f"; did you mean {near[0]}?" if near else ""

    def _named(self, path: str) -> Entry | None:
        if (entry := self.spec.entries.get(("let", path))) is not None:
            return entry
        return self.spec.entry("dims", path) if path in SECTIONS["dims"].keys else None

    def _inner(self, path: str, entry: Entry) -> object:
        section = "let" if ("let", path) in self.spec.entries else "dims"
        place = (section, path, None)
        if place not in self._kept:
            layer, self._layer = self._layer, None  # a name is the same for all layers
            self._open.append(path)
            try:
                value = self._raw(entry)
                if section == "dims":
                    value = SECTIONS[section].keys[path].type.accept(value)
            except BadValue as error:
                raise self.error(section, path, str(error)) from error
            finally:
                self._open.pop()
                self._layer = layer
            self._kept[place] = value
        return self._kept[place]


def _table(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value
