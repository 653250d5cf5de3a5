"""Facts about a machine that backends are chosen by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decisions are made from."""

    has_torch: bool  # is it installed? importing it takes seconds
    has_cuda: bool  # is there a driver, and does torch see a device?
    has_kernels: bool = False  # are the packages of the extra `cuda` installed?
    capability: tuple[int, int] = (0, 0)  # the compute capability of the first CUDA device
