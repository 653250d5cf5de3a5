"""data: URLs (RFC 2397): bytes that travel inside the request."""

from __future__ import annotations

import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from spaninfer_multimodal.errors import TooLarge, Unreadable

_HEADER: Final = re.compile(r"data:(?P<type>[\w.+/-]*)(?P<parameters>(?:;[^;,]*)*)", re.I | re.A)
_MAX_HEADER = 1024


def read_data_url(url: str, max_bytes: int) -> bytes:
    """Return the bytes of a data: URL, at most `max_bytes`.

    The declared media type is not looked at: formats are known by their signatures. Raises TooLarge
    before anything is decoded, Unreadable for other URLs.
    """
    header, comma, payload = url[:_MAX_HEADER].partition(",")
    found = _HEADER.fullmatch(header)
    if not comma or found is None:
        raise Unreadable(
            f"a data: URL begins like data:image/png;base64, and this one does not: {url[:40]!r}"
        )
    payload = url[len(header) + 1 :]
    if found["parameters"].lower().endswith(";base64"):
        return _of_base64(payload, max_bytes)
    if len(payload) > 3 * max_bytes:
        raise TooLarge(f"the data: URL holds more than {max_bytes} bytes, which is the limit")
    data = unquote_to_bytes(payload)
    _check(len(data), max_bytes)
    return data


def _of_base64(payload: str, max_bytes: int) -> bytes:
    """Decode standard base64, padded or not; nothing that is not base64 is skipped."""
    if "%" in payload[: 4 * max_bytes]:  # at most three characters stand for one of base64
        payload = unquote_to_bytes(payload).decode("latin-1")
    _check((len(payload) - payload[-2:].count("=")) * 3 // 4, max_bytes)
    try:
        return binascii.a2b_base64(payload + "=" * (-len(payload) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise Unreadable(f"the data: URL is not valid base64: {error}") from error


def _check(num_bytes: int, max_bytes: int) -> None:
    """Raise TooLarge for more than `max_bytes`."""
    if num_bytes > max_bytes:
        raise TooLarge(f"the data: URL holds {num_bytes} bytes; at most {max_bytes} are accepted")
