"""The spans of one layer: addresses of its keys, values and scales in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from spaninfer_kernel_launch import ArraySpec, Interned, inspect_array, interned, pointer_of

from span_attention.layout import SpanLayout


@dataclass(frozen=True)  # without slots: places are computed once, not at every launch
class Spans:
    """The spans of one layer: the memory of all of them, its layout, the number of the layer.

    `cache` is an array of any framework, whose memory must not move, or an address.
    """

    cache: object
    layout: SpanLayout
    layer: int = 0

    @cached_property
    def places(self) -> tuple[int, int]:
        """Addresses of the first key and the first value of the layer."""
        base = self._base
        return base + self.layout.keys.offset, base + self.layout.values.offset

    @cached_property
    def scale_places(self) -> tuple[int, int]:
        """Addresses of the first key's scales and the first value's; (0, 0) of floats."""
        keys, values = self.layout.key_scales, self.layout.value_scales
        if keys is None or values is None:
            return 0, 0
        return self._base + keys.offset, self._base + values.offset

    @cached_property
    def interned_layout(self) -> Interned[SpanLayout]:
        """The layout, as a key of what is prepared for it."""
        return interned(self.layout)

    @cached_property
    def interned_spec(self) -> Interned[ArraySpec]:
        """The spec of the cache, an array, as a key of what is prepared for it."""
        return interned(inspect_array(self.cache)[1])

    @property
    def _base(self) -> int:
        return pointer_of(self.cache) + self.layer * self.layout.layer_stride
