"""Every error this package raises.

KernelError
├── ShapeError    an argument does not have the shape or memory order that the kernel demands
├── DTypeError    an argument holds elements of another type
├── FormatError   a weight cannot be packed so
└── IsaLevelError     the instruction set that was asked for is not one that this CPU has
"""

from __future__ import annotations


class KernelError(ValueError):
    """Root of every error raised by this package: an argument that the kernel cannot take."""


class ShapeError(KernelError):
    """An argument does not have the shape or memory order that the kernel demands."""


class DTypeError(KernelError):
    """An argument holds elements of another type."""


class FormatError(KernelError):
    """A weight cannot be packed so: no such format, or numbers that have no code."""


class IsaLevelError(KernelError):
    """The instruction set that was asked for is not one that this CPU has."""
