"""Every error this package raises.

KernelError
├── ShapeError    an argument does not have the shape or memory order that the kernel demands
│   └── SizeError     a size or an index does not lie in the memory that it is about
├── DTypeError    an argument holds elements of another type
├── FormatError   a weight cannot be packed so
└── IsaLevelError     the requested instruction set is not one that this CPU has
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class KernelError(ValueError):
    """Root of every error raised by this package: an argument that the kernel cannot take."""


class ShapeError(KernelError):
    """An argument does not have the shape or memory order that the kernel demands."""


class SizeError(ShapeError):
    """A size, index or step of a call reaches beyond the memory that it is about."""

    def __init__(self, what: str, got: int, least: int, most: int) -> None:
        super().__init__(f"{what} is {got}; allowed is {least} to {most}")


class DTypeError(KernelError):
    """An argument holds elements of another type."""


class FormatError(KernelError):
    """A weight cannot be packed: there is no such format, or numbers have no code in it."""


class IsaLevelError(KernelError):
    """The requested instruction set is not one that this CPU has."""


def demand_size(what: str, got: int, least: int, most: int) -> None:
    """Raise SizeError unless a size lies between two others."""
    if not least <= got <= most:
        raise SizeError(what, got, least, most)


def check_vector(name: str, array: NDArray[np.generic], length: int) -> None:
    """Raise unless `array` is that many contiguous numbers of float32, at least one."""
    if array.dtype != np.float32:
        raise DTypeError(f"{name} holds {array.dtype}; the kernel takes float32")
    if not length or array.shape != (length,) or not array.flags.c_contiguous:
        raise ShapeError(
            f"{name}: expected {max(1, length)} contiguous numbers, got shape {array.shape} with "
            f"strides {array.strides}"
        )
