"""The cache groups of a decoder: which layers share span numbers."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_engine.spec.delta_nodes import StateShape
from spaninfer_engine.spec.nodes import CacheGroup


@dataclass(frozen=True, slots=True)
class Kept:
    """The KV shape of a layer, or its state. Equal layers share span numbers."""

    kv_heads: int
    key_size: int
    value_size: int
    window: int | None = None
    values_in_keys: bool = False
    state: StateShape | None = None


class Groups:
    """Cache groups, numbered in the order of their first layers."""

    def __init__(self) -> None:
        self._layers: dict[Kept, list[int]] = {}

    def join(self, kept: Kept, layer: int) -> int:
        """Return the group of a layer."""
        self._layers.setdefault(kept, []).append(layer)
        return list(self._layers).index(kept)

    def all(self) -> tuple[CacheGroup, ...]:
        """Return the groups as the tree states them."""
        return tuple(
            CacheGroup(
                index=index,
                layers=tuple(layers),
                kv_heads=kept.kv_heads,
                key_size=kept.key_size,
                value_size=kept.value_size,
                values_in_keys=kept.values_in_keys,
                window=kept.window,
                state=kept.state,
            )
            for index, (kept, layers) in enumerate(self._layers.items())
        )
