"""What holds memory, files or threads until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Is closed at the end of its `with` block; the caller's exception stays."""

    @abstractmethod
    def close(self) -> None:
        """Release what is held; harmless when repeated."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
