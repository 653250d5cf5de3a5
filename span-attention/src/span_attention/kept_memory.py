"""The plan and the workspace of a batch."""

from __future__ import annotations

from typing import Any

from spaninfer_kernel_launch import Allocate, pointer_of


class KeptMemory:
    """Memory that stays where it is as long as steps have the same key."""

    def __init__(self) -> None:
        self._key: object = None
        self._arrays: tuple[Any, ...] = ()
        self._addresses: tuple[int, ...] = ()

    def at(self, key: object, allocate: Allocate, stream: int) -> tuple[int, ...]:
        """Return the addresses of a step's memory, which is allocated where its key is another."""
        if key != self._key:
            self._arrays = allocate(stream)
            self._addresses = (*map(pointer_of, self._arrays),)
            self._key = key
        return self._addresses
