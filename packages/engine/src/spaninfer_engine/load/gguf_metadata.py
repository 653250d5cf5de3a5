"""The key-value part of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spaninfer_engine.errors import CheckpointError


@dataclass(frozen=True)
class Metadata:
    """Keys and values, of which those of the architecture carry its name in front."""

    source: str
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a key; CheckpointError where it is absent."""
        if key not in self.values:
            raise CheckpointError(f"{self.source}: the metadata has no {key!r}")
        return self.values[key]

    @property
    def architecture(self) -> str:
        """The architecture's name, which is also the prefix of its keys."""
        name: str = self.need("general.architecture")
        return name

    def count(self, key: str, default: int | None = None) -> int:
        """The whole number above 0 that a key of the architecture has.

        CheckpointError where it is another value, or absent while there is no default.
        """
        value = self._own(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.source}: {key} is {value!r}; it must be 1 or more")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The number that a key of the architecture has, errors as for `count`."""
        value = self._own(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.source}: {key} is {value!r}; it must be a number")
        return float(value)

    def optional(self, key: str) -> Any:
        """The value of a key of the architecture, or None."""
        return self.get(f"{self.architecture}.{key}")

    def _own(self, key: str, default: Any) -> Any:
        full = f"{self.architecture}.{key}"
        return self.need(full) if default is None else self.get(full, default)
