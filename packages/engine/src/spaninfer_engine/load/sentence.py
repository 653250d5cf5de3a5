"""Files of sentence-transformers beside a model: how texts become vectors.

`modules.json` lists what a text goes through: a Transformer, a Pooling, perhaps a Normalize, each
with a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spaninfer_engine.errors import CheckpointError, NotBuilt
from spaninfer_engine.load.json_file import read_json, read_json_list

PIPELINES = (("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize"))
MODES: Mapping[str, Literal["cls", "mean", "last"]] = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
}
_PREFIX = "pooling_mode_"


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """What a folder says about the vectors of texts."""

    pooling: Literal["cls", "mean", "last"]
    normalise: bool
    max_len: int | None  # tokens of a text, where it is said
    lower_case: bool


def read_sentence_settings(folder: Path) -> SentenceSettings | None:
    """Return the settings of a model folder; None where it has no modules.json.

    Raises CheckpointError for damaged files, NotBuilt for modules and poolings that are not built.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = [_module(file, each) for each in read_json_list(file)]
    types = tuple(kind for kind, _ in modules)
    if types not in PIPELINES:
        raise NotBuilt(
            f"{file} lists {', '.join(types) or 'nothing'}; built is Transformer, Pooling, and "
            "Normalize behind them"
        )
    inner = {kind: _inside(file, path) for kind, path in modules}
    text = inner["Transformer"] / "sentence_bert_config.json"
    said = read_json(text) if text.is_file() else {}
    return SentenceSettings(
        pooling=_pooling(inner["Pooling"] / "config.json"),
        normalise="Normalize" in types,
        max_len=_max_len(text, said.get("max_seq_length")),
        lower_case=said.get("do_lower_case") is True,
    )


def _module(file: Path, said: object) -> tuple[str, str]:
    """Return the type of a module, the last part of its class path, and its folder."""
    if isinstance(said, dict):
        kind, path = said.get("type"), said.get("path")
        if isinstance(kind, str) and isinstance(path, str):
            return kind.rpartition(".")[2], path
    raise CheckpointError(f"{file}: {said!r} is no module; it needs the texts `type` and `path`")


def _inside(file: Path, path: str) -> Path:
    """Return the folder of a module; CheckpointError where it is not in the model's."""
    folder = file.parent.resolve()
    inner = (folder / path).resolve()
    if not inner.is_relative_to(folder):
        raise CheckpointError(f"{file}: the path {path!r} leads out of the model's folder")
    return inner


def _pooling(file: Path) -> Literal["cls", "mean", "last"]:
    """Return the pooling of a config; the mean where it says nothing."""
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: modules.json beside the weights names it")
    said = read_json(file)
    modes = _modes(said) or ["mean_tokens"]
    if len(modes) > 1 or modes[0] not in MODES:
        raise NotBuilt(
            f"{file}: pooling by {' + '.join(map(str, modes))} is not built; built is one of "
            f"{', '.join(MODES)}"
        )
    return MODES[modes[0]]


def _modes(said: Mapping[str, Any]) -> list[Any]:
    """Return the modes of a config: `pooling_mode`, or the flags of older ones that are set."""
    mode = said.get("pooling_mode")
    if mode is not None:
        return mode if isinstance(mode, list) else [mode]
    flags = (key for key, value in said.items() if key.startswith(_PREFIX) and value is True)
    return [key.removeprefix(_PREFIX) for key in flags]


def _max_len(file: Path, said: object) -> int | None:
    if said is None or (type(said) is int and said > 0):
        return said
    raise CheckpointError(f"{file}: max_seq_length is {said!r}; it is a whole number, 1 or more")
