"""Architectures by name: the bundled files, those of other packages, a file the user names.

Another package offers its own with an entry point of the group "spaninfer.architectures" whose
value is a package that contains TOML files. A bundled name cannot be taken.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType

from spaninfer_engine.errors import ConfigError, UnknownArchitecture
from spaninfer_engine.spec.read import ModelSpec, read, read_names

GROUP = "spaninfer.architectures"
BUNDLED = "spaninfer_engine.architectures"


def load(name: str | Path) -> ModelSpec:
    """Return the spec of a name, or of a TOML file the user names."""
    if isinstance(name, Path) or name.endswith(".toml"):
        return _load_file(Path(name))
    if name not in library():
        raise UnknownArchitecture(name, library())
    return _load_known(name)


def find(config: Mapping[str, object]) -> ModelSpec:
    """Return the spec for a config.json, by the first class under `architectures` that is known.

    Of several specs for a class, the one that needs most of what is there goes first.
    Where it names no class, as base models saved by hand do, its `model_type` says which spec.
    """
    said = config.get("architectures")
    items = said if isinstance(said, list | tuple) else (said,)
    classes = [each for each in items if isinstance(each, str)]
    for each in classes:
        fitting = [
            spec for spec in map(_load_known, by_class().get(each, ())) if _fits(spec, config)
        ]
        if fitting:
            return max(fitting, key=lambda spec: len(spec.needs))
    if classes:
        raise UnknownArchitecture(classes[0], by_class())
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            "config.json names no architecture (key `architectures`, or `model_type`); "
            "name one of the bundled ones or a TOML file of your own with --spec"
        )
    if model_type not in by_model_type():
        raise UnknownArchitecture(model_type, by_model_type())
    return _load_known(by_model_type()[model_type])


@functools.cache
def library() -> Mapping[str, Traversable]:
    """Return every known architecture and its file, by name, bundled ones first."""
    found = dict(_toml_files(BUNDLED))
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.value):
        for name, file in _toml_files(point.value):
            found.setdefault(name, file)
    return MappingProxyType(found)


@functools.cache
def by_class() -> Mapping[str, tuple[str, ...]]:
    """Return the architectures' names for each name under `architectures` of config.json."""
    found: dict[str, tuple[str, ...]] = {}
    for name, (classes, _) in _names().items():
        for each in classes:
            found[each] = (*found.get(each, ()), name)
    return MappingProxyType(found)


def _fits(spec: ModelSpec, config: Mapping[str, object]) -> bool:
    """Return True if a config has what a spec needs."""
    return all(_has(config, *need.partition("=")[::2]) for need in spec.needs)


def _has(config: Mapping[str, object], path: str, wanted: str) -> bool:
    """Return True if a config has a key, with this value unless any will do."""
    value: object = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value == wanted if wanted else value is not None


@functools.cache
def by_model_type() -> Mapping[str, str]:
    """Return the architecture's name for each `model_type` of config.json."""
    found: dict[str, str] = {}
    for name, (_, model_types) in _names().items():
        for each in model_types:
            found.setdefault(each, name)
    return MappingProxyType(found)


def _names() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return what config.json calls each known architecture: classes, and model types."""
    return {name: read_names(file) for name, file in library().items()}


@functools.cache
def _load_known(name: str) -> ModelSpec:
    return read(library()[name], lambda name, _: library().get(name))


def _load_file(path: Path) -> ModelSpec:
    """Return the spec of a file; it may inherit from its neighbours and from known ones."""

    def ancestor(name: str, child: Traversable) -> Traversable | None:
        beside = path.with_name(f"{name}.toml")
        return beside if beside.is_file() and beside != child else library().get(name)

    return read(path, ancestor)


def _toml_files(package: str) -> Iterator[tuple[str, Traversable]]:
    for file in sorted(files(package).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), file
