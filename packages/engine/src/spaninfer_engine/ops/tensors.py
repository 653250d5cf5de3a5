"""Tensors of a backend: memory layouts of weights, spans, slots, copies from and to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import QuantizedWeight, WeightFormat

from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.step import A, SpanCache
from spaninfer_engine.request.media import Levels
from spaninfer_engine.spec.nodes import CacheGroup


class Tensors(Protocol[A]):
    """The tensors that one backend's operators take and return."""

    def layout(self, operator: str, argument: str) -> str:
        """Name the memory layout wanted for a weight; equal uses in equal layouts are shared."""
        ...

    def expanded_layout(self, layout: str) -> str:
        """Name the layout that plain numbers have in this one: a tied head is its table, then."""
        ...

    def coded_layout(self, layout: str) -> str:
        """Name the layout that codes have in this one: a tied head's are its table's, then."""
        ...

    def pack(self, arrays: Sequence[Packable], layout: str) -> A:
        """Return checkpoint arrays, concatenated along the first axis, in a layout of ours."""
        ...

    def quantized_packer(
        self, formats: Sequence[WeightFormat], layout: str
    ) -> Callable[[Sequence[QuantizedWeight]], A] | None:
        """Return what packs weights of these formats below one another, as they are stored.

        None where this backend computes with expanded ones in this layout, which `pack` takes.
        """
        ...

    def end_packing(self) -> None:
        """Give back what packing took beside the weights: a model's are all there."""
        ...

    def cache(self, group: CacheGroup, num_spans: int, span_len: int) -> SpanCache[A]:
        """Allocate the spans of a cache group; their contents are undefined."""
        ...

    def host_slots(self, cache: SpanCache[A], num_slots: int) -> A:
        """Allocate slots of host memory as bytes [slots span_bytes], each for a span of `cache`.

        ConfigError where the system does not give it.
        """
        ...

    def from_host(self, array: NDArray[Any]) -> A:
        """Return indices as they are, and floating-point numbers in the type of rotations."""
        ...

    def from_levels(self, codes: NDArray[np.uint8], levels: Levels) -> A:
        """Return the numbers that bytes of patches stand for."""
        ...

    def to_host(self, array: A) -> NDArray[np.float32]:
        """Return the array as float32 in host memory; waits for the device."""
        ...

    def warm(self) -> None:
        """Make ready what steps share, whatever the model; a first step makes ready the rest."""
        ...

    def available_bytes(self) -> int:
        """Return the memory that spans could take where they will lie."""
        ...

    @property
    def cache_share(self) -> float:
        """The part of the available bytes that spans may take unasked."""
        ...

    @property
    def memory_errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that operators raise when there is no memory for their results."""
        ...

    def take_rows(self, x: A, rows: NDArray[np.int32]) -> A:
        """Return a copy of these rows of x."""
        ...

    def stack_rows(self, parts: Sequence[A]) -> A:
        """Return the rows of all parts, one below the other."""
        ...

    def mix_rows(self, x: A, rows: NDArray[np.int32], weights: NDArray[np.float32]) -> A:
        """Return weighted sums of rows of x: of rows[n k], by weights[n k], in float32."""
        ...


def span_buffer_shape(group: CacheGroup, num_spans: int, span_len: int) -> tuple[int, int, int]:
    """[S N X]: a span of all layers of a group is one contiguous row of N * X numbers."""
    if group.state is not None:
        return num_spans, len(group.layers), group.state.numbers
    width = group.key_size + (0 if group.values_in_keys else group.value_size)
    return num_spans, len(group.layers), span_len * group.kv_heads * width
