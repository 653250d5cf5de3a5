"""Norms write codes, and no numbers beside them, where GEMMs of codes alone read their result.

What is left out are the two bytes of four or five that such a norm moves for each number. The
binder knows the readers, so that nothing is found out while a model runs; and the tensor that
stands for the numbers has no memory, so that any other reader would fail, not read what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.kernels import Kernels
from spaninfer_engine.backends.cuda.weights.linear import LinearWeight
from spaninfer_engine.ops.bound import BoundKernel, BoundProgram

_NORMS = {"rms_norm", "layer_norm"}


class Norm(Protocol):
    """A norm that may be told to write codes alone."""

    codes_only: bool


@dataclass(frozen=True, slots=True, eq=False)
class NormKernel:
    """A kernel whose last result is a norm, made by any of `norms`."""

    compute: Callable[..., Any]
    norms: tuple[Norm, ...]

    def __call__(self, *inputs: Any) -> Any:
        """Return what is computed."""
        return self.compute(*inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A kernel that reads its only input by a GEMM with this weight, and by nothing else."""

    compute: Callable[..., Any]
    weight: Any  # Tensor or LinearWeight

    def __call__(self, *inputs: Any) -> Any:
        """Return what is computed."""
        return self.compute(*inputs)


def leave_out_numbers(program: BoundProgram[Any], kernels: Kernels) -> None:
    """Tell those norms of a program that GEMMs of codes alone read to write nothing else."""
    for number, made in enumerate(program.kernels):
        if isinstance(made.kernel, NormKernel):
            readers = _readers(program.kernels[number + 1 :], made.outputs[-1])
            if readers and all(_reads_codes(reader, kernels) for reader in readers):
                for norm in made.kernel.norms:
                    norm.codes_only = True


def _readers(rest: Sequence[BoundKernel], slot: int) -> list[BoundKernel]:
    """Return the readers of a slot that has just been filled.

    None where another norm comes before one of them, since the latest norm's codes are kept, and
    none where the last reader is not among the kernels: it reads the program's result.
    """
    found: list[BoundKernel] = []
    has_other = False
    for each in rest:
        if slot in each.inputs:
            if has_other:
                return []
            found.append(each)
        if slot in each.frees:
            return found
        has_other |= any(operation.operator in _NORMS for operation in each.operations)
    return []


def _reads_codes(reader: BoundKernel, kernels: Kernels) -> bool:
    """Return True if the kernel reads the codes that norms of so many channels write."""
    if not isinstance(reader.kernel, Projection) or isinstance(reader.kernel.weight, Tensor):
        return False
    weight: LinearWeight = reader.kernel.weight
    codes = weight.x_codes
    return codes is not None and kernels.scaled.expected(weight.inner) == codes
