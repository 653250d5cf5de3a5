"""GGUF files, read through the gguf package: metadata, arrays under Hugging Face names, pieces.

What an architecture's file says about a model is in gguf_families.py; here is the container.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    ReaderField,
    ReaderTensor,
)
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load.gguf_experts import STACKS
from spaninfer_engine.load.gguf_families import find_family
from spaninfer_engine.load.gguf_metadata import Metadata
from spaninfer_engine.load.gguf_splits import files_of
from spaninfer_engine.load.quantised.entry import QuantizedEntry
from spaninfer_engine.load.quantised.gguf_blocks import BLOCK_TYPES, BlockType
from spaninfer_engine.load.reader import Entry, EntryReader
from spaninfer_engine.vocab import PieceType, Vocabulary, VocabularyKind

FLOAT32 = np.dtype("<f4")
STORED: dict[GGMLQuantizationType, np.dtype] = {
    GGMLQuantizationType.F32: FLOAT32,
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.BF16: np.dtype(ml_dtypes.bfloat16),
}
"""The formats whose numbers are used as they are stored."""

BEGINS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
"""Ways to cut words (`tokenizer.ggml.pre`) that come with a token in front of every text, unless
the file says otherwise.
"""


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
    vocabulary: Vocabulary
    chat_template: str | None
    special_tokens: dict[str, str]


def open_gguf(path: Path) -> GgufFile:
    """Read a GGUF file; ConfigError for an unknown architecture, CheckpointError for damage."""
    container, values = open_container(path)
    metadata = Metadata(str(path), values)
    tensors = _tensors(path, container)
    for file in files_of(path, metadata)[1:]:
        more = _tensors(file, open_container(file)[0])
        if twice := sorted(tensors.keys() & more.keys()):
            raise CheckpointError(f"{file}: tensor {twice[0]!r} is in an earlier file, too")
        tensors |= more
    family = find_family(metadata)
    config = family.config(metadata, tensors)
    entries = family.rename(metadata, tensors)
    vocabulary = read_vocabulary(metadata)
    config["vocab_size"] = len(vocabulary.pieces)
    if "model.embed_tokens.weight" in entries:  # may be padded beyond the pieces
        config["vocab_size"] = entries["model.embed_tokens.weight"].shape[0]
    config["tie_word_embeddings"] = "lm_head.weight" not in entries
    config["bos_token_id"], config["eos_token_id"] = vocabulary.bos_id, _end_ids(metadata)
    return GgufFile(
        config,
        EntryReader(str(path), entries),
        vocabulary,
        metadata.text("tokenizer.chat_template"),
        _special_tokens(vocabulary),
    )


def _tensors(path: Path, container: GGUFReader) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for tensor in container.tensors:
        entries |= _entries(path, tensor)
    return entries


def open_container(path: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """Return the file and the values of its metadata by key; CheckpointError for damage."""
    try:
        container = _Reader(path)
        return container, {key: field.contents() for key, field in container.fields.items()}
    except _DAMAGE as broken:
        raise CheckpointError(f"{path} cannot be read as GGUF: {broken}") from broken


_DAMAGE = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    OSError,
)
"""What the package raises of files that are none, or not whole."""


class _Reader(GGUFReader):
    """The package's reader, with a plain array over the mapped file.

    It cuts the array three times for each number and each string, and a vocabulary has hundreds of
    thousands. Cutting a `memmap` makes another each time: 3.5 s for that of GPT-2, now 1.5.
    """

    @property  # type: ignore[override]
    def data(self) -> NDArray[np.uint8]:
        """The bytes of the file."""
        return self._data

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._data: NDArray[np.uint8] = mapped.view(np.ndarray)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        """Name the first tensor that a truncated file does not hold, before any is made."""
        for field in fields:
            _, _, _, sizes, kind, offset = field.parts
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
            num_bytes = math.prod(map(int, sizes)) * block_bytes // block
            if (end := int(start_offs) + int(offset[0]) + num_bytes) > len(self.data):
                raise ValueError(
                    f"tensor {field.name!r} ends at byte {end:,}, and the file has "
                    f"{len(self.data):,}; it is truncated, download it again"
                )
        super()._build_tensors(start_offs, fields)


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """Return the shape as numpy counts; the file writes sizes innermost first."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _entries(path: Path, tensor: ReaderTensor) -> dict[str, Entry]:
    """Return the entry of a tensor, or one per expert of a stack of them."""
    shape, data = _shape(tensor), np.asarray(tensor.data)
    stem, _, end = tensor.name.rpartition(".")
    if len(shape) != (2 if end == "bias" else 3) or not stem.endswith(STACKS):
        return {tensor.name: _entry(path, tensor, shape, data)}
    each = data.reshape(shape[0], -1)
    return {
        f"{stem}.{expert}.{end}": _entry(path, tensor, shape[1:], each[expert])
        for expert in range(shape[0])
    }


def _entry(path: Path, tensor: ReaderTensor, shape: tuple[int, ...], data: np.ndarray) -> Entry:
    kind = tensor.tensor_type
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


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The pieces that the metadata carries."""
    metadata.need("tokenizer.ggml.model")
    model = metadata.text("tokenizer.ggml.model")
    kinds = {"llama": VocabularyKind.SENTENCEPIECE_BPE, "gpt2": VocabularyKind.BYTE_BPE}
    if model is None or model not in kinds:
        raise ConfigError(
            f"{metadata.source}: its tokenizer is {model!r}; supported are {', '.join(kinds)}"
        )
    pieces = metadata.listed("tokenizer.ggml.tokens", str)
    normal = [int(PieceType.NORMAL)] * len(pieces)
    types = metadata.listed("tokenizer.ggml.token_type", int, normal)
    scores = metadata.listed("tokenizer.ggml.scores", float, ())
    if len(types) != len(pieces) or (scores and len(scores) != len(pieces)):
        raise CheckpointError(
            f"{metadata.source}: {len(pieces)} pieces, but {len(types)} types "
            f"and {len(scores)} scores"
        )
    is_spm = kinds[model] is VocabularyKind.SENTENCEPIECE_BPE
    pre = metadata.text("tokenizer.ggml.pre", "default") or "default"
    return Vocabulary(
        kinds[model],
        pieces=tuple(pieces),
        types=_piece_types(metadata, types),
        scores=tuple(scores),
        merges=tuple(metadata.listed("tokenizer.ggml.merges", str, ())),
        pre=pre,
        bos_id=metadata.index("tokenizer.ggml.bos_token_id", len(pieces)),
        eos_id=metadata.index("tokenizer.ggml.eos_token_id", len(pieces)),
        # what llama.cpp assumes where the file is silent
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token", is_spm or pre in BEGINS),
        add_eos=metadata.flag("tokenizer.ggml.add_eos_token", False),
        add_space_prefix=metadata.flag("tokenizer.ggml.add_space_prefix", is_spm),
        remove_extra_whitespaces=metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False),
    )


def _piece_types(metadata: Metadata, numbers: Iterable[int]) -> tuple[PieceType, ...]:
    """The types of the pieces, with exactly one unknown piece.

    Files mark padding as unknown too, and some mark the unknown piece as a control piece.
    """
    try:
        types = [PieceType(number) for number in numbers]
    except ValueError as broken:
        raise CheckpointError(f"{metadata.source}: a piece has no type: {broken}") from broken
    unknown_id = metadata.index("tokenizer.ggml.unknown_token_id", len(types))
    if unknown_id is None:
        unknown_id = types.index(PieceType.UNKNOWN) if PieceType.UNKNOWN in types else None
    types = [PieceType.UNUSED if kind is PieceType.UNKNOWN else kind for kind in types]
    if unknown_id is not None:
        types[unknown_id] = PieceType.UNKNOWN
    return tuple(types)


def _end_ids(metadata: Metadata) -> list[int]:
    """All ids that end an answer: of the sequence, of the turn, of the message."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = (metadata.get(f"tokenizer.ggml.{key}") for key in keys)
    return list(dict.fromkeys(number for number in ids if isinstance(number, int)))


def _special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    ids: Mapping[str, int | None] = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
    }
    return {name: vocabulary.pieces[number] for name, number in ids.items() if number is not None}
