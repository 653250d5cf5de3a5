"""Output of `spec list`, `spec show` and `spec check` as frozen data, without printing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spaninfer_engine.errors import ConfigError, NotBuilt
from spaninfer_engine.spec.check import Idle, differences
from spaninfer_engine.spec.read import Entry, ModelSpec
from spaninfer_engine.spec.registry import library, load
from spaninfer_engine.spec.resolve import resolve_fully
from spaninfer_engine.spec.vocabulary import SECTIONS
from spaninfer_engine.spec.vocabulary.words import REQUIRED


@dataclass(frozen=True, slots=True)
class Listed:
    """One known architecture."""

    name: str
    kind: str
    hf: tuple[str, ...]  # values of `architectures` in config.json
    checked: tuple[str, ...] = ()  # published checkpoints that it was checked with


@dataclass(frozen=True, slots=True)
class Row:
    """One key of a section: what holds, who says it, and what it means."""

    key: str
    value: str  # as a spec file would write it
    source: str  # a file, or "vocabulary" for a default
    says: str


@dataclass(frozen=True, slots=True)
class ShownSection:
    """One section with its inherited keys and defaults."""

    name: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A whole spec."""

    name: str
    kind: str
    hf: tuple[str, ...]
    sections: tuple[ShownSection, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that checking a spec file found."""

    level: Literal["error", "warning", "note"]
    text: str


def list_specs() -> tuple[Listed, ...]:
    """Return every known architecture, by name."""
    specs = (load(name) for name in sorted(library()))
    return tuple(Listed(spec.name, spec.kind, spec.hf, spec.checked) for spec in specs)


def show(name: str | Path, defaults: bool = True) -> Shown:
    """Return a spec with everything it inherits; `defaults`: also what it leaves unsaid.

    Of a section that concerns other kinds of models, only what is said is shown.
    """
    spec = load(name)
    sections = (
        ShownSection(section, tuple(_rows(spec, section, defaults))) for section in SECTIONS
    )
    return Shown(
        spec.name, spec.kind, spec.hf, tuple(section for section in sections if section.rows)
    )


def check_file(
    path: str | Path,
    config: Mapping[str, object] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    is_idle: Idle = lambda _: False,
) -> tuple[Finding, ...]:
    """Return what is wrong with a spec file: by itself, for a config, and for a checkpoint.

    `shapes` are the checkpoint's tensors and their shapes; they need the config.
    """
    return tuple(_findings(path, config, shapes, is_idle))


def toml(value: object) -> str:
    """Return a value as a TOML file would write it; null as the spec language does."""
    match value:
        case None:
            return '"null"'
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)  # TOML escapes as JSON does
        case tuple() | list():
            return f"[{', '.join(toml(item) for item in value)}]"
        case Mapping():
            return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
        case _:
            return str(value)


def _rows(spec: ModelSpec, section: str, defaults: bool) -> Iterator[Row]:
    said, word = spec.said(section), SECTIONS[section]
    concerned = bool(said) or section in _ALWAYS
    for key, known in word.keys.items():
        if key in said or (defaults and concerned and known.default is not REQUIRED):
            yield _row(key, spec.entry(section, key), known.says)
    if word.is_open:
        for key, entry in said.items():
            yield _row(key, entry, "")


_ALWAYS = {"dims", "norm", "embed", "attn", "rope", "mlp", "block", "head", "weights"}


def _row(key: str, entry: Entry, says: str) -> Row:
    return Row(key, toml(entry.text), entry.source, says)


def _findings(
    path: str | Path,
    config: Mapping[str, object] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
    is_idle: Idle,
) -> Iterator[Finding]:
    try:
        spec = load(path)
        if config is None:
            return
        resolution = resolve_fully(spec, config, shapes)
    except NotBuilt as reason:
        yield Finding("note", str(reason))
        return
    except ConfigError as error:
        yield Finding("error", str(error))
        return
    for section, key in resolution.unasked:
        yield Finding("note", f"{spec.source}: [{section}] {key}: nothing asks for it here")
    for key in resolution.unread:
        yield Finding("warning", f"config.json: nothing reads {key}")
    if shapes is None:
        return
    for problem in differences(resolution.model, shapes, is_idle):
        yield Finding("error", problem)
