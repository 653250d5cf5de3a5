"""Devices that torch finds: whether they can be used, and what is free on them."""

from __future__ import annotations

import torch

from spaninfer_engine.errors import ConfigError


def cuda_is_available() -> bool:
    """Return whether torch was built with CUDA and finds a device."""
    return torch.cuda.is_available()


def cuda_capability() -> tuple[int, int]:
    """Return the compute capability of the current CUDA device, such as (9, 0)."""
    return torch.cuda.get_device_capability()


def free_device_bytes(device: torch.device | None = None) -> int:
    """Return what is free on a CUDA device; None: the current one."""
    free: int = torch.cuda.mem_get_info(device)[0]
    return free


def usable_device(name: str) -> torch.device:
    """Return torch's device of this name; ConfigError where nothing can be put on it."""
    try:
        device = torch.device(name)
    except RuntimeError as unknown:
        raise ConfigError(
            f"torch has no device {name!r}; give --device cpu, cuda, cuda:1 or the like"
        ) from unknown
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as refused:  # the latter: torch was built without it
        reason = str(refused).partition("\n")[0]
        raise ConfigError(
            f"device {name} cannot be used: {reason}; choose another --device, or leave it out"
        ) from refused
    return device


def sum_in_float32() -> None:
    """Have cuBLAS keep partial sums of 16-bit GEMMs in float32, everywhere in the process.

    By torch's default it may cut K and add the parts in bfloat16: of x[9 12] @ w[12 16], 58 of 144
    results were not the nearest bfloat16 (H200, torch 2.11). Where K may not be cut, as batch
    invariance wants it, parts are not added at all, and that stays so.
    """
    matmul = torch.backends.cuda.matmul
    for dtype in ("bf16", "fp16"):
        name = f"allow_{dtype}_reduced_precision_reduction"
        if getattr(matmul, name):
            setattr(matmul, name, False)
