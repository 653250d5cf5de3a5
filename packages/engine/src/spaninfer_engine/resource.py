"""The base of objects that hold memory, files or threads until they are closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Resource(ABC):
    """A context manager that closes itself; an exception of the caller is kept."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
