"""[media], [vision] and [audio] -> the towers of a decoder, and the tokens that stand for media."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from spaninfer_engine.spec.account import check_expected, unread
from spaninfer_engine.spec.read import Entry, ModelSpec
from spaninfer_engine.spec.scope import Scope
from spaninfer_engine.spec.sections.audio import AudioReader
from spaninfer_engine.spec.sections.vision import VisionReader
from spaninfer_engine.spec.tower_nodes import MediaTokens, Tower

_TEXT_ONLY = ("config", "config.default", "config.expect")  # sections about the text model's config


@dataclass(frozen=True, slots=True)
class Reading:
    """The towers of a model, what was read for them, or why there are none."""

    towers: tuple[Tower, ...] = ()
    media: MediaTokens | None = None
    scopes: tuple[Scope, ...] = ()
    own: tuple[tuple[str, Scope], ...] = ()  # those of towers' own configs, by its key
    surplus: tuple[str, ...] = ()  # patterns of tensors that the towers do not use
    missing: str = ""

    def unread(self) -> tuple[str, ...]:
        """Return the keys of towers' configs that were not read."""
        return tuple(f"{within}.{key}" for within, scope in self.own for key in unread(scope))


def read_towers(
    spec: ModelSpec, config: Mapping[str, object], names: Collection[str] | None, width: int
) -> Reading:
    """Return the towers that a spec describes, for a whole config.json and a decoder so wide.

    None where the spec describes none, where the config says nothing of it, or where the checkpoint
    was saved without it.
    """
    section = next((each for each in _READERS if spec.said(each)), None)
    if section is None:
        return Reading(missing="the spec describes no tower")
    scope = _scope(spec, config, section)
    if isinstance(scope, str):
        return Reading(missing=scope)
    reader = _READERS[section](scope, names, width)
    if not reader.is_there:
        return Reading(missing="the checkpoint holds no weights of its tower")
    media, media_scope = _media(spec, config)
    key = scope.text(section, "config")
    scopes = (scope, media_scope)
    return Reading((reader.tower(),), media, scopes, ((key, scope),), reader.surplus)


def _scope(spec: ModelSpec, config: Mapping[str, object], section: str) -> Scope | str:
    """Return the scope of a tower's own config; a reason where there is no such config."""
    key = str(spec.entry(section, "config").text)
    inner = config.get(key)
    if not isinstance(inner, Mapping):
        return f"config.json has no {key}"
    own = {place: entry for place, entry in spec.entries.items() if place[0] not in _TEXT_ONLY}
    for name, entry in spec.said(f"{section}.expect").items():
        own["config.expect", name] = entry
    own["config", "ignore"] = Entry(spec.source, spec.entry(section, "ignore").text)
    beside = cast("tuple[str, ...]", spec.entry(section, "beside").text)
    inner = {**{key: config[key] for key in beside if key in config}, **inner}
    scope = Scope(replace(spec, entries=MappingProxyType(own)), inner)
    for key in ("config", "ignore", "beside"):
        scope.value(section, key)
    check_expected(scope)
    return scope


def _media(spec: ModelSpec, config: Mapping[str, object]) -> tuple[MediaTokens, Scope]:
    scope = Scope(spec, config)
    tokens = {
        field: scope.optional_integer("media", f"{field}_token")
        for field in ("image", "video", "audio", "start", "end")
    }
    seconds = scope.optional_number("media", "seconds_per_t")
    media = MediaTokens(
        **tokens,
        seconds_per_t=seconds,
        frames_apart=scope.flag("media", "frames_apart"),
        bidirectional=scope.flag("media", "bidirectional"),
        replaces_marks=scope.flag("media", "replaces_marks"),
        around=scope.text("media", "around"),
        written=scope.text("media", "written"),
    )
    return media, scope


_READERS: Mapping[str, type[VisionReader] | type[AudioReader]] = {
    "vision": VisionReader,
    "audio": AudioReader,
}
