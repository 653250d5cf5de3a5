"""Weights of GEMMs that are no tensors: codes in the order of a kernel, with their scales.

Operators and fusions multiply by them through this protocol alone, so that a new format is a class
here and a line in `WeightPacker.packer_of`.
"""

from __future__ import annotations

from typing import Protocol

from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.scaled_gemm import Codes
from torch import Tensor


class LinearWeight(Protocol):
    """A weight[N K], packed for its kernels."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        ...

    @property
    def inner(self) -> int:
        """K."""
        ...

    @property
    def x_codes(self) -> Codes | None:
        """The codes that x is quantised to in front of the GEMM; None where it is not."""
        ...

    def multiply(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        *,
        gate: Act | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return x[M K] @ weight[N K].T + bias[N], or its gated activation [M N/2].

        With `residual`[M N], which must be dense, the result is added to it, and it is returned. A
        gate needs a weight that was packed in the layout GATED_GEMM.
        """
        ...

    def __getitem__(self, rows: slice) -> LinearWeight:
        """Return the rows from `rows.start` to the last as a weight of their own."""
        ...


GEMM = "gemm"  # the layout of weights that GEMMs multiply by
GATED_GEMM = "gated gemm"  # of a gate's rows above those of up
