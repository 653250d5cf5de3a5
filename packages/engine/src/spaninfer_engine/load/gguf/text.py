"""The tokenizer and the chat template in the metadata of a GGUF file.

A file may hold these alone, without a tensor: llama.cpp calls such a file a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load.gguf.container import NUM_TENSORS_AT, open_container
from spaninfer_engine.load.gguf.metadata import Metadata
from spaninfer_engine.vocab import PieceType, Vocabulary, VocabularyKind

BEGINS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
"""Ways to cut words (`tokenizer.ggml.pre`) that come with a token in front of every text, unless
the file says otherwise.
"""


@dataclass(frozen=True)
class GgufText:
    """The text part of a GGUF file: its tokenizer, and the Jinja source of its chats."""

    vocabulary: Vocabulary
    chat_template: str | None
    special_tokens: dict[str, str]


def open_text(path: Path) -> GgufText:
    """Read the text of a GGUF file, with or without tensors; errors as for `open_gguf`."""
    return read_text(Metadata(str(path), open_container(path).values))


def read_text(metadata: Metadata) -> GgufText:
    """Read the text that the metadata carry; ConfigError for an unknown kind of tokenizer."""
    vocabulary = read_vocabulary(metadata)
    template = metadata.text("tokenizer.chat_template")
    return GgufText(vocabulary, template, _special_tokens(vocabulary))


def write_text(source: Path, path: Path) -> None:
    """Write the metadata of a GGUF file as a file without tensors. OSError as writing raises it."""
    head = open_container(source).head.copy()
    head[NUM_TENSORS_AT : NUM_TENSORS_AT + 8] = 0
    path.write_bytes(head.tobytes())


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
        pieces=pieces,
        types=_piece_types(metadata, types),
        scores=tuple(scores),
        merges=metadata.listed("tokenizer.ggml.merges", str, ()),
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


def _special_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    ids: Mapping[str, int | None] = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
    }
    return {name: vocabulary.pieces[number] for name, number in ids.items() if number is not None}
