"""The tokenizers of llama2.c models: `tokenizer.bin` files hold pieces with scores."""

from __future__ import annotations

import struct
from pathlib import Path

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.tensors.mapped import map_file
from spaninfer_engine.vocab import PieceType, Vocabulary, VocabularyKind

KINDS = ("bin", "model")


def find_pieces(folder: Path, num_pieces: int) -> Path | None:
    """The tokenizer's file: `tok512` for 512 pieces or `tokenizer`, `.bin` or `.model`; or None."""
    names = (f"{stem}.{kind}" for stem in (f"tok{num_pieces}", "tokenizer") for kind in KINDS)
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_pieces(path: Path, num_pieces: int) -> Vocabulary:
    """The pieces of a llama2.c `tokenizer.bin`: a maximal length, then score, length and text.

    The file stores no types and writes a space where sentencepiece has "▁"; ids 0, 1 and 2 are
    unknown, begin and end by convention of the exporter.
    """
    text = map_file(path).tobytes()
    pieces: list[str] = []
    scores: list[float] = []
    at = 4
    for index in range(num_pieces):
        try:
            score, length = struct.unpack_from("<fi", text, at)
            raw = text[at + 8 : at + 8 + length]
            if length < 0 or len(raw) != length:
                raise ValueError("its text is cut off")
            pieces.append(raw.decode("utf-8"))
        except (struct.error, ValueError) as broken:
            raise CheckpointError(
                f"{path}: piece {index} of {num_pieces} cannot be read: {broken}"
            ) from broken
        scores.append(score)
        at += 8 + length
    fixed = ("<unk>", "<s>", "</s>")
    types = (PieceType.UNKNOWN, PieceType.CONTROL, PieceType.CONTROL)
    rest = pieces[3:]
    return Vocabulary(
        VocabularyKind.SENTENCEPIECE_BPE,
        pieces=fixed + tuple(piece.replace(" ", "▁") for piece in rest),
        types=types + tuple(_piece_type(piece) for piece in rest),
        scores=tuple(scores),
        bos_id=1,
        eos_id=2,
        add_bos=True,
    )


def _piece_type(piece: str) -> PieceType:
    is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return PieceType.BYTE if is_byte else PieceType.NORMAL
