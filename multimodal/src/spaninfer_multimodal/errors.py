"""Every error this package raises.

MediaError
├── TooLarge      more bytes or pixels than the limits allow
└── Unreadable    not an image of a known format, or a damaged one
"""

from __future__ import annotations


class MediaError(ValueError):
    """Root of every error raised by this package: a picture that a request cannot use."""


class TooLarge(MediaError):
    """More bytes or pixels than the limits allow."""


class Unreadable(MediaError):
    """Not an image of a known format, or a damaged one."""
