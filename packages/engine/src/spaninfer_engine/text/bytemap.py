"""GPT-2's printable alphabet of bytes: how byte-level vocabularies write their pieces in JSON."""

from __future__ import annotations


def _byte_alphabet() -> list[str]:
    """One printable character for each byte: itself where it is printable, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


_CHARACTERS = _byte_alphabet()
_BYTES = {character: byte for byte, character in enumerate(_CHARACTERS)}


def to_alphabet(data: bytes) -> str:
    """Bytes in printable characters."""
    return "".join(map(_CHARACTERS.__getitem__, data))


def from_alphabet(piece: str) -> bytes:
    """The bytes of a piece; a piece with characters outside the alphabet stands for itself."""
    try:
        return bytes(map(_BYTES.__getitem__, piece))
    except KeyError:
        return piece.encode()
