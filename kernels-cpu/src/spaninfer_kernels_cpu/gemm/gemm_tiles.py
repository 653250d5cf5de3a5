"""The micro-kernels that a GEMM is compiled for, by how many rows they multiply."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.elementwise.activations import Activation
from spaninfer_kernels_cpu.gemm.micro_kernel import EXPANDED_ABOVE, MicroKernel


@dataclass(frozen=True, slots=True)
class GemmTiles(Constant):
    """The micro-kernels for one row, for a few, for up to twice as many, and for more; and the
    activation of gated products, or of outputs.
    """

    one: MicroKernel
    small: MicroKernel
    medium: MicroKernel
    large: MicroKernel
    activation: Activation

    @property
    def few(self) -> int:
        """The most rows that small tiles, or medium ones, multiply."""
        return EXPANDED_ABOVE if self.large.expands_to_bytes else 2 * self.small.rows
