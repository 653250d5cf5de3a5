"""Sentencepiece vocabularies: tokenizer.model files, and pieces with scores from other containers.

The sentencepiece library cuts the text, so that results are its results; pieces that come without
a model file are written into one in memory. The message format (protocol buffers) is small enough
to be read and written here:

    ModelProto: 1 piece*, 2 trainer, 3 normalizer         piece: 1 text, 2 score, 3 type
    trainer: 3 model type (2 BPE), 35 byte fallback
    normalizer: 1 name, 3 add dummy prefix, 4 remove extra whitespace, 5 escape whitespace

Of a number that occurs twice the last one counts, and a message that occurs twice is merged, so
settings are changed by appending.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from functools import cached_property

from sentencepiece import SentencePieceProcessor

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.vocab import PieceType, Vocabulary

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
BPE = 2  # model type
SPACE = "▁"
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"  # normalizer { add dummy prefix: false }
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePieceCodec:
    """A Codec over a sentencepiece model. Control pieces are never recognised in text.

    `prefixes_all` puts the dummy space also before text that follows a special token, as
    tokenizers of Llama 1 and 2 do ("legacy"). CheckpointError, naming the source, where the model
    is damaged: every piece is looked at here, so that none fails a request that draws it.
    """

    def __init__(self, model: bytes, *, source: str, prefixes_all: bool = True) -> None:
        self._model = model
        self._source = source
        self._library = _load(model, source)
        self._prefixes_all = prefixes_all
        _check_pieces(self._library, source)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return int(self._library.vocab_size())

    @cached_property
    def strips_leading_space(self) -> bool:
        """True if the model puts a dummy space before a text."""
        return bool(self._library.encode("a", out_type=str)[0].startswith(SPACE))

    @property
    def control_ids(self) -> list[int]:
        """The ids that are never made from text: control pieces and the unknown one."""
        ids = range(self.vocab_size)
        return [i for i in ids if self._library.is_control(i) or self._library.is_unknown(i)]

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if the model has one."""
        return _present(self._library.bos_id())

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text, if the model has one."""
        return _present(self._library.eos_id())

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of an ordinary text."""
        prefixed = at_start or self._prefixes_all
        library = self._library if prefixed else self._inner_library
        ids: list[int] = library.encode(text)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token appends to a text."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        piece: str = self._library.id_to_piece(token_id)
        if self._library.is_byte(token_id):
            byte = BYTE_PIECE.fullmatch(piece)
            assert byte, f"{piece} is a byte piece"
            return bytes.fromhex(byte[1])
        return piece.replace(SPACE, " ").encode()

    def find_id(self, text: str) -> int | None:
        """The id of a piece, or None."""
        found = int(self._library.piece_to_id(text))
        return found if self._library.id_to_piece(found) == text else None

    @cached_property
    def _inner_library(self) -> SentencePieceProcessor:
        return _load(self._model + NO_DUMMY_PREFIX, self._source)


def _load(model: bytes, source: str) -> SentencePieceProcessor:
    if not model:
        raise CheckpointError(f"{source} is empty")
    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as broken:
        raise CheckpointError(f"{source} is not a sentencepiece model: {broken}") from broken


def _check_pieces(library: SentencePieceProcessor, source: str) -> None:
    """Raise unless all pieces are UTF-8, which the library does not look at: 0.1 s for 250,000."""
    try:
        library.id_to_piece(list(range(library.vocab_size())))
    except UnicodeDecodeError as broken:
        raise CheckpointError(
            f"{source} is damaged: the piece {broken.object!r} is not UTF-8; download it again"
        ) from broken


def _present(token_id: int) -> int | None:
    return token_id if token_id >= 0 else None


def as_model(vocabulary: Vocabulary) -> bytes:
    """The model file that sentencepiece would have stored for these pieces."""
    pieces = b"".join(
        _message(1, _message(1, piece.encode()) + _float(2, score) + _number(3, kind))
        for piece, score, kind in zip(
            vocabulary.pieces, vocabulary.scores, vocabulary.types, strict=True
        )
    )
    has_bytes = PieceType.BYTE in vocabulary.types
    trainer = _number(3, BPE) + _number(35, has_bytes)
    normalizer = (
        _message(1, b"identity")
        + _number(3, vocabulary.add_space_prefix)
        + _number(4, vocabulary.remove_extra_whitespaces)
        + _number(5, True)
    )
    return pieces + _message(2, trainer) + _message(3, normalizer)


def with_control_pieces(model: bytes, texts: Collection[str], *, source: str) -> bytes:
    """The model with these pieces as control pieces, so that text is never cut into them.

    Some models (Gemma's) store the marks of a chat as user-defined pieces, which sentencepiece
    recognises in any text.
    """
    wanted = {text.encode() for text in texts}
    try:
        return b"".join(
            _message(1, value + _number(3, PieceType.CONTROL))
            if field == 1 and _first_bytes(value) in wanted
            else whole
            for field, value, whole in _fields(model)
        )
    except ValueError as broken:
        raise CheckpointError(f"{source} is not a sentencepiece model: {broken}") from broken


def _first_bytes(message: bytes) -> bytes | None:
    return next((value for field, value, _ in _fields(message) if field == 1), None)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, value (empty unless it is a string or message) and whole bytes of each field."""
    at = 0
    while at < len(message):
        start = at
        key, at = _read_varint(message, at)
        value = b""
        match key & 7:
            case 0:
                _, at = _read_varint(message, at)
            case 1:
                at += 8
            case 2:
                length, at = _read_varint(message, at)
                value = message[at : at + length]
                at += length
            case 5:
                at += 4
            case wire:
                raise ValueError(f"there is no wire type {wire}")
        if at > len(message):
            raise ValueError("it ends within a field")
        yield key >> 3, value, message[start:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise ValueError("it ends within a number")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | VARINT) + _varint(int(value))


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | FIXED32) + struct.pack("<f", value)


def _message(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | BYTES) + _varint(len(value)) + value
