"""Shape contracts of a kernel's arguments, in one line per tensor.

>>> import numpy as np
>>> match(query=(np.zeros((7, 16, 128)), "T H D"), key=(np.zeros((7, 8, 128)), "T K D"))
{'T': 7, 'H': 16, 'D': 128, 'K': 8}
>>> match(query=(np.zeros((7, 16, 128)), "T H D"), key=(np.zeros((9, 8, 128)), "T K D"))
Traceback (most recent call last):
spaninfer_kernel_launch.errors.ShapeError: key: T is 9, but query has T = 7
>>> match(query=(np.zeros((7, 16, 96)), "T H 128"))
Traceback (most recent call last):
spaninfer_kernel_launch.errors.ShapeError: query: axis 2 is 96, but the kernel needs 128
"""

from __future__ import annotations

from typing import Protocol

from spaninfer_kernel_launch.errors import ShapeError


class Shaped(Protocol):
    """Anything with a shape: an array of any framework, or a `View`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""


def match(**tensors: tuple[Shaped, str]) -> dict[str, int]:
    """Return the size of each letter.

    A letter that occurs twice must have one size, a number must be the size; else a ShapeError
    names both sides.
    """
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, (tensor, axes) in tensors.items():
        letters, shape = axes.split(), tuple(tensor.shape)
        if len(letters) != len(shape):
            raise ShapeError(f"{name}: expected axes ({axes}), got shape {shape}")
        for axis, (letter, size) in enumerate(zip(letters, shape, strict=True)):
            if letter.isdigit():
                if size != int(letter):
                    raise ShapeError(
                        f"{name}: axis {axis} is {size}, but the kernel needs {letter}"
                    )
                continue
            where = first.setdefault(letter, name)
            if size != (wanted := sizes.setdefault(letter, size)):
                raise ShapeError(f"{name}: {letter} is {size}, but {where} has {letter} = {wanted}")
    return sizes
