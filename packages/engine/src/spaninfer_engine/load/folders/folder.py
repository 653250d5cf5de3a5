"""Hugging Face folders: config.json, safetensors shards, tokenizer and template files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.json_file import read_json
from spaninfer_engine.load.containers.pytorch import read_pytorch
from spaninfer_engine.load.containers.safetensors import read_safetensors
from spaninfer_engine.load.containers.shards import ReadShard, open_index, open_shards
from spaninfer_engine.load.folders.modules import ModuleReader
from spaninfer_engine.load.folders.sentence import dense_folders
from spaninfer_engine.load.folders.wrong_kind import (
    model_files,
    no_weights,
    refuse_folder,
    refuse_stand_ins,
)
from spaninfer_engine.load.packed.file import PACKED_FILE, PackedReader, open_packed
from spaninfer_engine.load.quantised.checkpoint import with_quantised
from spaninfer_engine.load.tensors.reader import EntryReader, WeightReader

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "*.tiktoken")
"""Files that hold a tokenizer, the most exact first."""

CONTAINERS: tuple[tuple[tuple[str, ...], str, ReadShard], ...] = (
    (("model.safetensors", "*.safetensors"), "model.safetensors.index.json", read_safetensors),
    (
        ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model*.pt"),
        "pytorch_model.bin.index.json",
        read_pytorch,
    ),
)
"""Files that hold weights, the first that is there, their index, and what reads one."""

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def open_folder(
    folder: Path, *, with_weights: bool = True
) -> tuple[dict[str, Any], dict[str, Any], WeightReader]:
    """The config, the generation config (empty where absent) and the weights of a folder."""
    refuse_folder(folder)
    refuse_stand_ins(model_files(folder))
    config = _with_modelopt(folder, read_json(folder / "config.json"))
    generation = folder / "generation_config.json"
    weights = _open_weights(folder) if with_weights else EntryReader(str(folder), {})
    if isinstance(weights, EntryReader):
        weights = weights.changed(lambda entries: with_quantised(str(folder), entries, config))
    whole = _with_modules(folder, weights) if with_weights else weights
    return config, read_json(generation) if generation.is_file() else {}, whole


def _with_modelopt(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config with what ModelOpt writes beside it, in older folders alone."""
    file = folder / "hf_quant_config.json"
    if config.get("quantization_config") or not file.is_file():
        return config
    said = read_json(file).get("quantization")
    settings = said if isinstance(said, dict) else {}
    return config | {"quantization_config": {**settings, "quant_method": "modelopt"}}


def find_tokenizer(folder: Path) -> Path | None:
    """The file that holds the folder's tokenizer, settings beside it; None without a tokenizer.

    The folder itself where it has settings of a tokenizer but none of the files.
    """
    for pattern in TOKENIZER_FILES:
        for path in sorted(folder.glob(pattern)):
            return path
    return folder if (folder / "tokenizer_config.json").is_file() else None


def read_template(folder: Path) -> tuple[str | dict[str, str] | None, dict[str, str]]:
    """The chat template, one or several by name, and the named special tokens of a folder."""
    files = (folder / "special_tokens_map.json", folder / "tokenizer_config.json")
    settings: dict[str, Any] = {}
    for path in files:  # the second wins: the first is of older folders
        settings |= read_json(path) if path.is_file() else {}
    template = _template(folder / "tokenizer_config.json", settings.get("chat_template"))
    file = folder / "chat_template.json"
    if file.is_file():  # of a vision model's processor
        template = _template(file, read_json(file).get("chat_template"))
    file = folder / "chat_template.jinja"
    if file.is_file():  # the newer place, which wins
        template = _read_text(file)
    return template, _named_tokens(settings)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as broken:
        raise CheckpointError(
            f"{path} is not text in UTF-8: {broken}; save it as UTF-8, or give another with "
            "--chat-template FILE"
        ) from broken


def _template(file: Path, said: Any) -> str | dict[str, str] | None:
    """The chat template that a file has: a text, or a list of several with their names."""
    if said is None or isinstance(said, str):
        return said
    items = said if isinstance(said, list) else [None]
    known = [each for each in items if isinstance(each, dict)]
    pairs: list[tuple[Any, Any]] = [(each.get("name"), each.get("template")) for each in known]
    if len(pairs) < len(items) or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise CheckpointError(
            f"{file}: chat_template is neither a text nor a list of items with a name and a "
            "template; put the template into chat_template.jinja"
        )
    return dict(pairs)


def _named_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Texts of bos_token and the like, each a string or an object with its content."""
    tokens: dict[str, str] = {}
    for name in NAMED_TOKENS:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _with_modules(folder: Path, weights: WeightReader) -> WeightReader:
    """Return the weights with those of Dense modules beside them, if there are any."""
    modules = {str(each.relative_to(folder)): each for each in dense_folders(folder)}
    if not modules:
        return weights
    return ModuleReader(weights, {name: _open_weights(each) for name, each in modules.items()})


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds weights in a container that is known."""
    patterns = (each for names, index, _ in CONTAINERS for each in (index, *names))
    return any(any(folder.glob(each)) for each in (PACKED_FILE, *patterns))


def _open_weights(folder: Path) -> EntryReader | PackedReader:
    if (folder / PACKED_FILE).is_file():
        return open_packed(folder / PACKED_FILE)
    for names, index, read in CONTAINERS:
        if (folder / index).is_file():
            return open_index(folder / index, read)
        for name in names:
            if shards := sorted(folder.glob(name)):
                return open_shards(shards, read)
    raise no_weights(folder)
