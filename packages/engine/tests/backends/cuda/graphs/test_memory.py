"""Errors that mean that a device is out of memory."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from spaninfer_engine.backends.cuda.graphs.memory import lacks_memory
from spaninfer_kernel_launch.errors import DriverError, OutOfMemory


def of_driver(code: int) -> RuntimeError:
    error = RuntimeError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]  # as torch's own has one
    return error


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), True),
        (OutOfMemory("cuLaunchKernelEx: out of memory"), True),
        (MemoryError(), True),
        (of_driver(2), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (of_driver(700), False),
        (DriverError("an illegal memory access"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
    ],
    ids=repr,
)
def test_torch_the_driver_and_cublas_say_in_ways_of_their_own_that_memory_is_out(
    error: Exception, lacks: bool
) -> None:
    assert lacks_memory(error) is lacks
