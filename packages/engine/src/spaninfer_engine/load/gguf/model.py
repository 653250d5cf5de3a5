"""GGUF files as Hugging Face would have written them: config, arrays by name, and text.

What an architecture's file says about a model is in families.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from spaninfer_op_reference import QuantizedWeight

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES, BlockType
from spaninfer_engine.load.gguf.container import Container, GgufTensor, open_container
from spaninfer_engine.load.gguf.experts import STACKS
from spaninfer_engine.load.gguf.families import find_family
from spaninfer_engine.load.gguf.metadata import Metadata
from spaninfer_engine.load.gguf.splits import files_of
from spaninfer_engine.load.gguf.text import GgufText, read_text
from spaninfer_engine.load.tensors.quantised import QuantizedEntry
from spaninfer_engine.load.tensors.reader import Entry, EntryReader

FLOAT32 = np.dtype("<f4")
STORED: dict[GGMLQuantizationType, np.dtype] = {
    GGMLQuantizationType.F32: FLOAT32,
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
"""The formats whose numbers are used as they are stored."""


@dataclass(frozen=True, slots=True)
class GgufArray:
    """A tensor of plain numbers in a GGUF file, or one expert's part of it."""

    data: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self) -> np.ndarray:
        """The array in place."""
        array = self.data.view(self.dtype).reshape(self.shape)
        return array if array.flags.aligned else array.copy()


@dataclass(frozen=True)
class GgufFile:
    """The content of a GGUF file, in the form that Hugging Face would have written."""

    config: dict[str, Any]
    reader: EntryReader
    text: GgufText


def open_gguf(path: Path) -> GgufFile:
    """Read a GGUF file; ConfigError for an unknown architecture, CheckpointError for damage."""
    container = open_container(path)
    metadata = Metadata(str(path), container.values)
    tensors = _tensors(path, container)
    for file in files_of(path, metadata)[1:]:
        more = _tensors(file, open_container(file))
        if twice := sorted(tensors.keys() & more.keys()):
            raise CheckpointError(f"{file}: tensor {twice[0]!r} is in an earlier file, too")
        tensors |= more
    family = find_family(metadata)
    config = family.config(metadata, tensors)
    entries = family.rename(metadata, tensors)
    text = read_text(metadata)
    config["vocab_size"] = len(text.vocabulary.pieces)
    if "model.embed_tokens.weight" in entries:  # may be padded beyond the pieces
        config["vocab_size"] = entries["model.embed_tokens.weight"].shape[0]
    config["tie_word_embeddings"] = "lm_head.weight" not in entries
    config["bos_token_id"], config["eos_token_id"] = text.vocabulary.bos_id, _end_ids(metadata)
    return GgufFile(config, EntryReader(str(path), entries), text)


def _tensors(path: Path, container: Container) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for tensor in container.tensors:
        entries |= _entries(path, tensor)
    return entries


def _entries(path: Path, tensor: GgufTensor) -> dict[str, Entry]:
    """Return the entry of a tensor, or one per expert of a stack of them."""
    shape, data = tensor.shape, tensor.data
    stem, _, end = tensor.name.rpartition(".")
    if len(shape) != (2 if end == "bias" else 3) or not stem.endswith(STACKS):
        return {tensor.name: _entry(path, tensor, shape, data)}
    each = data.reshape(shape[0], -1)
    return {
        f"{stem}.{expert}.{end}": _entry(path, tensor, shape[1:], each[expert])
        for expert in range(shape[0])
    }


def _entry(path: Path, tensor: GgufTensor, shape: tuple[int, ...], data: np.ndarray) -> Entry:
    kind = tensor.kind
    if kind in STORED:
        return GgufArray(data, shape, STORED[kind])
    if kind.name in BLOCK_TYPES:
        return _quantized_entry(BLOCK_TYPES[kind.name], shape, data)
    known = ", ".join([*(each.name for each in STORED), *BLOCK_TYPES])
    raise CheckpointError(
        f"{path}: tensor {tensor.name!r} is {kind.name}; supported are {known}; use a file in these"
    )


def _quantized_entry(blocks: BlockType, shape: tuple[int, ...], data: np.ndarray) -> QuantizedEntry:
    def load() -> QuantizedWeight:
        return blocks.read(data.reshape(*shape[:-1], -1), shape[-1])

    return QuantizedEntry(blocks.format, shape, FLOAT32, data.nbytes, load)


def _end_ids(metadata: Metadata) -> list[int]:
    """All ids that end an answer: of the sequence, of the turn, of the message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return list(dict.fromkeys(number for number in ids if isinstance(number, int)))
