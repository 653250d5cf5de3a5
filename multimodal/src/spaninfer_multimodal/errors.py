"""Every error this package raises.

MediaError
├── Forbidden      a source that the operator does not allow: scheme, host, address, folder
├── Unreachable    a source that did not deliver: DNS, connection, TLS, HTTP status, missing file
├── TooLarge       more bytes, pixels, frames, seconds or memory than the limits allow
├── TooSlow        fetching or decoding took longer than the limits allow
├── Unreadable     not of a known format, damaged, or with nothing to decode
├── Busy           more decoding is waiting than the pool accepts
└── ConfigError    a processor configuration that this package does not implement
"""

from __future__ import annotations


class MediaError(ValueError):
    """Root of every error raised by this package."""


class Forbidden(MediaError):
    """A source that the operator does not allow."""


class Unreachable(MediaError):
    """A source that did not deliver its bytes."""


class TooLarge(MediaError):
    """More bytes, pixels, frames, seconds or memory than the limits allow."""


class TooSlow(MediaError):
    """Fetching or decoding took longer than the limits allow."""


class Unreadable(MediaError):
    """Not of a known format, damaged, or with nothing to decode."""


class Busy(MediaError):
    """More decoding is waiting than the pool accepts; worth trying again."""


class ConfigError(MediaError):
    """A processor configuration that this package does not implement."""
