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
