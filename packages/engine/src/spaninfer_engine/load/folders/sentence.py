"""Files of sentence-transformers beside a model: how texts become vectors.

`modules.json` lists what a text goes through: a Transformer, a Pooling, perhaps Dense layers and a
Normalize, each with a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spaninfer_engine.errors import CheckpointError, NotBuilt, shown
from spaninfer_engine.json_file import read_json, read_json_list
from spaninfer_engine.load.folders.logit_score import ScoreTokens, read_score_tokens
from spaninfer_engine.spec.pooling_nodes import (
    HeadActivation,
    HeadLayer,
    Pool,
    PoolKind,
    TextSettings,
)
from spaninfer_engine.spec.weight_nodes import Linear, Weight

MODES: Mapping[str, PoolKind] = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean_tokens": "weighted_mean",
    "lasttoken": "last",
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "weightedmean": "weighted_mean",
}
"""Poolings by the two names that files have for them, in the order in which several are joined."""

ACTIVATIONS: Mapping[str, HeadActivation] = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu",
}  # fmt: skip
_PREFIX = "pooling_mode_"
PROMPTS = "config_sentence_transformers.json"
SCORED = ["Transformer", "LogitScore"]


@dataclass(frozen=True, slots=True)
class SentenceSettings:
    """The settings of a sentence-transformers folder."""

    pool: Pool
    text: TextSettings
    dense: tuple[HeadLayer, ...] = ()  # weights are named FOLDER/linear.weight
    max_len: int | None = None  # tokens of a text, where it is said
    score: ScoreTokens | None = None  # pairs are scored by logits


def read_sentence_settings(folder: Path) -> SentenceSettings | None:
    """Return the settings of a model folder; None where it has no modules.json.

    Raises CheckpointError for damaged files, NotBuilt for modules and poolings that are not built.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = [_module(file, each) for each in read_json_list(file)]
    kinds = [kind for kind, _ in modules]
    _check_order(file, kinds)
    inner = [_inside(file, path) for _, path in modules]
    text = inner[0] / "sentence_bert_config.json"
    said = read_json(text) if text.is_file() else {}
    if kinds == SCORED:
        return _scored(folder, inner[1], said, _max_len(text, said.get("max_seq_length")))
    return SentenceSettings(
        pool=Pool(_pooling(inner[1] / "config.json"), "Normalize" in kinds),
        text=_text_settings(folder / PROMPTS, said.get("do_lower_case") is True),
        dense=tuple(
            _dense(path, at / "config.json")
            for (kind, path), at in zip(modules, inner, strict=True)
            if kind == "Dense"
        ),
        max_len=_max_len(text, said.get("max_seq_length")),
    )


def dense_folders(folder: Path) -> tuple[Path, ...]:
    """Return the folders of Dense modules, which have weights of their own."""
    settings = read_sentence_settings(folder)
    layers = () if settings is None else settings.dense
    return tuple(folder / layer.linear.weight.name.rpartition("/")[0] for layer in layers)


def _check_order(file: Path, kinds: Sequence[str]) -> None:
    first, between, last = kinds[:2], kinds[2:-1], kinds[2:][-1:]
    fits = {*between} <= {"Dense"} and {*last} <= {"Dense", "Normalize"}
    if kinds == SCORED or (first == ["Transformer", "Pooling"] and fits):
        return
    raise NotBuilt(
        f"{file} lists {', '.join(kinds) or 'nothing'}; supported are Transformer, Pooling, then "
        "any number of Dense and at most one Normalize; or Transformer and LogitScore"
    )


def _scored(
    folder: Path, module: Path, said: Mapping[str, Any], max_len: int | None
) -> SentenceSettings:
    """Return the settings of a decoder that scores pairs; its default prompt is an instruction."""
    text = _text_settings(folder / PROMPTS, said.get("do_lower_case") is True)
    instruction = "" if text.default_prompt is None else dict(text.prompts)[text.default_prompt]
    file = folder / PROMPTS
    settings = read_json(file) if file.is_file() else {}
    score = read_score_tokens(module / "config.json", said, settings, instruction)
    return SentenceSettings(
        pool=Pool(("last",), normalise=False),
        text=replace(text, pairs=score.pairs),
        max_len=max_len,
        score=score,
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
    try:
        inner = (folder / path).resolve()
    except (RuntimeError, ValueError) as broken:  # a loop of links, before Python 3.13; a NUL
        raise CheckpointError(f"{file}: the path {path!r} leads nowhere: {broken}") from broken
    if not inner.is_relative_to(folder):
        raise CheckpointError(f"{file}: the path {path!r} leads out of the model's folder")
    return inner


def _pooling(file: Path) -> tuple[PoolKind, ...]:
    """Return the poolings of a config; the mean where it says nothing."""
    said = _config(file)
    modes = _modes(said) or ["mean_tokens"]
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise NotBuilt(
            f"{file}: pooling by {' + '.join(map(str, modes))} is not built; built is one of "
            f"{', '.join(MODES)}, or several of them"
        )
    if said.get("include_prompt") is False:
        raise NotBuilt(
            f"{file}: include_prompt is false; prompts are always part of what is pooled"
        )
    order = list(MODES)
    return tuple(MODES[mode] for mode in sorted(modes, key=order.index))


def _modes(said: Mapping[str, Any]) -> list[Any]:
    """Return the modes of a config: `pooling_mode`, or the flags of older ones that are set."""
    mode = said.get("pooling_mode")
    if mode is not None:
        return mode if isinstance(mode, list) else [mode]
    flags = (key for key, value in said.items() if key.startswith(_PREFIX) and value is True)
    return [key.removeprefix(_PREFIX) for key in flags]


def _dense(path: str, file: Path) -> HeadLayer:
    """Return a Dense module: a projection, and an activation named by its class path."""
    said = _config(file)
    sizes = said.get("out_features"), said.get("in_features")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(f"{file}: in_features and out_features are whole numbers, 1 or more")
    name = str(said.get("activation_function") or "Tanh").rpartition(".")[2]
    if name not in ACTIVATIONS or said.get("use_residual"):
        raise NotBuilt(
            f"{file}: a Dense module with activation {name} and use_residual "
            f"{said.get('use_residual')} is not built; built is {', '.join(ACTIVATIONS)}, without"
        )
    weight = Weight(f"{path}/linear.weight", sizes)  # type: ignore[arg-type]  # both are whole
    bias = Weight(f"{path}/linear.bias", weight.shape[:1]) if said.get("bias", True) else None
    return HeadLayer(Linear(weight, bias), ACTIVATIONS[name])


def _text_settings(file: Path, lower_case: bool) -> TextSettings:
    """Return what is done to texts: prompts by name, and which of them is meant unasked."""
    said = read_json(file) if file.is_file() else {}
    prompts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(each, str) for each in prompts.values()):
        raise CheckpointError(f"{file}: prompts is {shown(prompts)}; it is a table of texts")
    if default is not None and default not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise CheckpointError(
            f"{file}: default_prompt_name is {shown(default)}; its prompts are {known}"
        )
    return TextSettings(lower_case, tuple(prompts.items()), default)


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: modules.json beside the weights names it")
    return read_json(file)


def _max_len(file: Path, said: object) -> int | None:
    if said is None or (type(said) is int and said > 0):
        return said
    raise CheckpointError(f"{file}: max_seq_length is {said!r}; it is a whole number, 1 or more")
