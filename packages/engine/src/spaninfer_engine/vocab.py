"""A tokenizer's vocabulary as plain data, read by `load` and used by `text`.

Some containers (GGUF, llama2.c) carry the pieces of their tokenizer themselves. `load` must not
know how text is cut and `text` must not know containers, so both meet here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path


class PieceType(IntEnum):
    """The type of a piece; the numbers are those of sentencepiece and of GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class VocabularyKind(Enum):
    """The segmentation algorithm: how text is cut into pieces."""

    SENTENCEPIECE_BPE = "sentencepiece"  # pieces with scores, "▁" for a space, byte fallback
    BYTE_BPE = "byte_bpe"  # pieces in GPT-2's printable byte alphabet, merges in order


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The pieces of a tokenizer in the order of their ids, and how they are used.

    `scores` belongs to SENTENCEPIECE_BPE, `merges` ("left right") and `pre` (the name of the
    rule that splits text into words) to BYTE_BPE.
    """

    kind: VocabularyKind
    pieces: Sequence[str]
    types: tuple[PieceType, ...]
    scores: tuple[float, ...] = ()
    merges: Sequence[str] = ()
    pre: str = "default"
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = True
    remove_extra_whitespaces: bool = False


TokenizerSource = Path | Vocabulary
"""Where a tokenizer comes from: a folder or file in the formats of Hugging Face, or the pieces."""
