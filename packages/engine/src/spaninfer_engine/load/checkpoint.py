"""A model on disk, whatever its container: config, weights, tokenizer and template in one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spaninfer_engine.errors import ConfigError
from spaninfer_engine.load.containers.llama2c import open_llama2c
from spaninfer_engine.load.containers.llama2c_pieces import find_pieces, read_pieces
from spaninfer_engine.load.folders.chat_formats import format_named
from spaninfer_engine.load.folders.folder import find_tokenizer, open_folder, read_template
from spaninfer_engine.load.folders.generation import end_ids, sampling_defaults
from spaninfer_engine.load.folders.hub_cache import find_model, model_name, where_to_get
from spaninfer_engine.load.folders.wrong_kind import refuse_stand_ins
from spaninfer_engine.load.packed.file import TEXT_FILE
from spaninfer_engine.load.tensors.mapped import release_pages
from spaninfer_engine.load.tensors.reader import WeightReader
from spaninfer_engine.resource import Resource
from spaninfer_engine.vocab import TokenizerSource

ALLOWED = (
    "a Hugging Face folder (config.json and *.safetensors, or pytorch_model*.bin), a .gguf file "
    "or a llama2.c .bin file"
)


@dataclass(frozen=True)
class Checkpoint(Resource):
    """The content of a model's files, under the names and in the row order of Hugging Face.

    `config` is config.json or its equivalent; `chat_template` is Jinja source, or several by
    name; `special_tokens` maps names such as "bos_token" to their text. Weights are read on
    demand; `close` lets go of the files.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    reader: WeightReader
    tokenizer: TokenizerSource | None
    chat_template: str | Mapping[str, str] | None
    special_tokens: Mapping[str, str]

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end an answer, of config.json and generation_config.json together.

        Raises CheckpointError where a file gives something else.
        """
        files = {"config.json": self.config, "generation_config.json": self.generation_config}
        return end_ids({f"{self.path}: {file}": config for file, config in files.items()})

    @property
    def end_texts(self) -> tuple[str, ...]:
        """The tokens that end an answer in the chat format that generation_config.json names."""
        return format_named(self.generation_config).end_texts

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The sampling values that the model's makers chose."""
        return sampling_defaults(self.generation_config)

    def close(self) -> None:
        """Let go of the files, and of the memory that they take; idempotent."""
        self.reader.close()
        release_pages()


def open_checkpoint(path: str | Path, *, with_weights: bool = True) -> Checkpoint:
    """Open the model at a path, or of a name in the hub's local cache (ORG/NAME).

    The container is recognised by what is there.

    Without `with_weights`, a folder needs config.json alone, and the reader has no names.

    ConfigError where the path is none of the known containers, CheckpointError where its files
    are damaged or contradict each other.
    """
    found = find_model(path)
    if found is None:
        raise ConfigError(
            f"there is no file or folder {str(path)!r}; a model is {ALLOWED}; {where_to_get(path)}"
        )
    if found.is_dir():
        return _from_folder(found, with_weights)
    path = found
    refuse_stand_ins([path])
    match path.suffix.lower():
        case ".gguf":
            return _from_gguf(path)
        case ".bin":
            return _from_llama2c(path)
        case ".safetensors":
            raise ConfigError(
                f"{path} holds weights only; give its folder, which also needs config.json"
            )
    raise ConfigError(f"{path} is not a model; a model is {ALLOWED}")


def _from_folder(path: Path, with_weights: bool) -> Checkpoint:
    config, generation_config, reader = open_folder(path, with_weights=with_weights)
    tokenizer, template, special_tokens = _text_of(path, config)
    return Checkpoint(
        path,
        model_name(path),
        config,
        generation_config,
        reader,
        tokenizer,
        format_named(generation_config).template if template is None else template,
        special_tokens,
    )


def _text_of(
    path: Path, config: Mapping[str, Any]
) -> tuple[TokenizerSource | None, str | Mapping[str, str] | None, Mapping[str, str]]:
    """Return tokenizer, chat template and special tokens of a folder.

    Those of the file that a folder was converted from, where that had them within.
    """
    template, special_tokens = read_template(path)
    tokenizer: TokenizerSource | None = find_tokenizer(path)
    if tokenizer is not None:
        return tokenizer, template, special_tokens
    if (file := path / TEXT_FILE).is_file():
        from spaninfer_engine.load.gguf.text import open_text

        text = open_text(file)
        template = text.chat_template if template is None else template
        return text.vocabulary, template, text.special_tokens
    if "vocab_size" in config:
        tokenizer = _llama2c_tokenizer(path, config["vocab_size"])
    return tokenizer, template, special_tokens


def _from_gguf(path: Path) -> Checkpoint:
    from spaninfer_engine.load.gguf.model import (
        open_gguf,  # what reads such files takes 0.1 s to import
    )

    file = open_gguf(path)
    return Checkpoint(
        path,
        path.stem,
        file.config,
        {},
        file.reader,
        file.text.vocabulary,
        file.text.chat_template,
        file.text.special_tokens,
    )


def _from_llama2c(path: Path) -> Checkpoint:
    config, reader = open_llama2c(path)
    return Checkpoint(
        path,
        path.stem,
        config,
        {},
        reader,
        _llama2c_tokenizer(path.parent, config["vocab_size"]),
        None,
        {},
    )


def _llama2c_tokenizer(folder: Path, vocab_size: int) -> TokenizerSource | None:
    """The tokenizer of a llama2.c model in a folder, if it is there."""
    file = find_pieces(folder, vocab_size)
    if file is not None and file.suffix == ".bin":
        return read_pieces(file, vocab_size)
    return file
