"""The key-value part of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from spaninfer_engine.errors import CheckpointError, shown


def shortest(value: float) -> float:
    """The decimal that was meant by a float32: 1e-05 and not 9.999999747378752e-06."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


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
        self.need("general.architecture")
        return self.text("general.architecture") or ""

    def count(self, key: str, default: int | None = None) -> int:
        """The whole number above 0 that a key of the architecture has.

        CheckpointError where it is another value, or absent while there is no default.
        """
        value = self._own(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{self.source}: {key} is {shown(value)}; it must be 1 or more")
        return value

    def amount(self, key: str) -> int:
        """The whole number from 0 on that a key of the architecture has; 0 where it is absent."""
        return self.count(key) if self.optional(key) else 0

    def number(self, key: str, default: float | None = None) -> float:
        """The number that a key of the architecture has, errors as for `count`."""
        value = self._own(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(f"{self.source}: {key} is {shown(value)}; it must be a number")
        return float(value)

    def optional(self, key: str) -> Any:
        """The value of a key of the architecture, or None."""
        return self.get(f"{self.architecture}.{key}")

    def text(self, key: str, default: str | None = None) -> str | None:
        """The text that a key has, or the default; CheckpointError where it is another value."""
        return cast("str | None", self._typed(key, str, default))

    def flag(self, key: str, default: bool) -> bool:
        """True or false, or the default; CheckpointError where it is another value."""
        return cast(bool, self._typed(key, bool, default))

    def listed(self, key: str, kind: type, default: Sequence[Any] | None = None) -> Sequence[Any]:
        """The list of a key, all items of a type; errors as for `count`."""
        values = self.need(key) if default is None else self.get(key, default)
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        if not is_list or not all(isinstance(each, kind) for each in values):
            raise CheckpointError(
                f"{self.source}: {key} is {shown(values)}; it must be a list of {kind.__name__}"
            )
        return cast("Sequence[Any]", values)

    def index(self, key: str, limit: int) -> int | None:
        """The number below `limit` that a key has, None where it is absent, or -1."""
        value = self.get(key)
        if value is None or value in (-1, 2**32 - 1):  # what llama.cpp writes for none
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
            raise CheckpointError(
                f"{self.source}: {key} is {shown(value)}; it must lie from 0 to {limit - 1}"
            )
        return value

    def _typed(self, key: str, kind: type, default: Any) -> Any:
        value = self.get(key, default)
        if value is not None and not isinstance(value, kind):
            raise CheckpointError(
                f"{self.source}: {key} is {shown(value)}; it must be of type {kind.__name__}"
            )
        return value

    def _own(self, key: str, default: Any) -> Any:
        full = f"{self.architecture}.{key}"
        return self.need(full) if default is None else self.get(full, default)
