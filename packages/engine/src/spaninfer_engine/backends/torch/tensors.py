"""Tensors of one dtype on one torch device: weights, spans, slots, copies from and to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_op_reference import WeightFormat
from torch import Tensor

from spaninfer_engine.backends.host_memory import DEVICE_SHARE, HOST_SHARE, available_bytes
from spaninfer_engine.backends.rounded_weights import (
    ROUNDED,
    TURNED,
    rounded_layout,
    rounded_weights,
)
from spaninfer_engine.backends.torch.devices import (
    free_device_bytes,
    sum_in_float32,
    usable_device,
)
from spaninfer_engine.backends.torch.states import state_cache
from spaninfer_engine.backends.torch.upload import Uploader, fill
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.ops.operation import Packable
from spaninfer_engine.ops.step import SpanCache
from spaninfer_engine.ops.tensors import span_buffer_shape
from spaninfer_engine.request.media import Levels
from spaninfer_engine.spec.nodes import CacheGroup

_WIDE = "float32"  # the layout of weights in float32


class TorchTensors:
    """The memory of a backend whose operators compute with torch."""

    def __init__(
        self,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "cpu",
        grid: WeightFormat | None = None,
    ) -> None:
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._grid = grid  # that weights of GEMMs are rounded to
        self.device = usable_device(device)
        self._uploader = None
        if self.device.type == "cuda":
            sum_in_float32()
            self._uploader = Uploader(self.device)

    def layout(self, operator: str, argument: str) -> str:
        """Every weight lies as in the checkpoint, in this dtype; those of GEMMs may be rounded, and
        logarithms of decays, which are few, are not.
        """
        if operator == "delta_gates":
            return _WIDE
        rounded = None if self._grid is None else rounded_layout(operator, argument)
        return rounded or "plain"

    def expanded_layout(self, layout: str) -> str:
        """There is one layout."""
        return layout

    def coded_layout(self, layout: str) -> str:
        """Codes lie as each layout has them."""
        return layout

    def pack(self, arrays: Sequence[Packable], layout: str) -> Tensor:
        """Copy to the device, in this backend's dtype."""
        if self._grid is not None and layout in (ROUNDED, TURNED):
            arrays = rounded_weights(arrays, layout, self._grid)
        rows = [array.shape[0] for array in arrays]
        shape = (sum(rows), *arrays[0].shape[1:])
        dtype = torch.float32 if layout == _WIDE else self.dtype
        packed = torch.empty(shape, dtype=dtype, device=self.device)
        for array, part in zip(arrays, torch.split(packed, rows), strict=True):
            self.upload(array, part)
        return packed

    def upload(self, array: Packable, out: Tensor) -> None:
        """Fill contiguous `out`, in its dtype."""
        (fill if self._uploader is None else self._uploader.fill)(array, out)

    def quantized_packer(self, formats: Sequence[WeightFormat], layout: str) -> Any:  # noqa: ARG002
        """None: torch multiplies by expanded weights."""
        return None

    def end_packing(self) -> None:
        """Give threads and pinned memory back."""
        if self._uploader is not None:
            self._uploader.close()

    def cache(self, group: CacheGroup, num_spans: int, span_len: int) -> SpanCache[Tensor]:
        """Allocate the spans of a cache group."""
        shape = span_buffer_shape(group, num_spans, span_len)
        if group.state is not None:
            return state_cache(group.state, shape, self.device)
        buffer = torch.empty(shape, dtype=self.dtype, device=self.device)
        head = (span_len, group.kv_heads)
        cut = math.prod(head) * group.key_size
        keys = _heads(buffer[..., :cut], head)
        rows = buffer.view(torch.uint8).flatten(1)
        if group.values_in_keys:
            return SpanCache(keys, keys[..., : group.value_size], rows)
        return SpanCache(keys, _heads(buffer[..., cut:], head), rows)

    def host_slots(self, cache: SpanCache[Tensor], num_slots: int) -> Tensor:
        """Allocate slots, in pinned memory where a GPU copies from and to it."""
        shape, pinned = (num_slots, cache.rows.shape[1]), self.device.type == "cuda"
        try:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        except RuntimeError as short:
            raise ConfigError(
                f"cannot allocate {math.prod(shape):,} bytes of host memory for KV cache "
                f"offloading ({short}); lower --kv-offload"
            ) from short

    def from_host(self, array: NDArray[Any]) -> Tensor:
        """Indices and float32 angles go to the device as they are, row after row: kernels take
        addresses.
        """
        if self.device.type == "cpu":  # where torch would share the memory
            return torch.from_numpy(np.array(array, order="C"))
        return torch.from_numpy(np.require(array, None, ["C", "W"])).to(self.device)

    def from_levels(self, codes: NDArray[np.uint8], levels: Levels) -> Tensor:
        """Return the numbers that bytes of patches stand for, in this dtype: looked up on the
        device, which an eighth of an image's numbers is copied to.
        """
        channels, num_levels = levels.values.shape
        values = self.from_host(levels.values).to(self.dtype).flatten()
        first = torch.arange(0, channels * num_levels, num_levels, device=self.device)
        places = self.from_host(codes).view(len(codes), channels, 1, -1).int()
        places += first.int()[:, None, None]
        found = values.index_select(0, places.flatten()).view(places.shape)
        return found.expand(-1, -1, levels.repeats, -1).reshape(len(codes), -1)

    def warm(self) -> None:
        """Nothing is compiled."""

    def available_bytes(self) -> int:
        """Return what is free on the device."""
        if self.device.type == "cuda":
            return free_device_bytes(self.device)
        return available_bytes()

    @property
    def cache_share(self) -> float:
        """Return the share of it that spans may take unasked."""
        return DEVICE_SHARE if self.device.type == "cuda" else HOST_SHARE

    @property
    def memory_errors(self) -> tuple[type[Exception], ...]:
        """Return what torch's allocators raise."""
        return MemoryError, torch.OutOfMemoryError

    def to_host(self, array: Tensor) -> NDArray[np.float32]:
        """Return the array as float32 in host memory."""
        result: NDArray[np.float32] = array.float().cpu().numpy()
        return result

    def take_rows(self, x: Tensor, rows: NDArray[np.int32]) -> Tensor:
        """Return a copy of these rows."""
        return x[self.from_host(rows)]

    def stack_rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the rows of all parts."""
        return torch.cat(list(parts))

    def mix_rows(self, x: Tensor, rows: NDArray[np.int32], weights: NDArray[np.float32]) -> Tensor:
        """Return weighted sums, in float32, rounded once."""
        parts = x[torch.from_numpy(rows).to(self.device)].float()
        by = torch.from_numpy(weights).to(self.device)
        return (parts * by[..., None]).sum(1).to(x.dtype)


def _heads(buffer: Tensor, head: tuple[int, int]) -> Tensor:
    """[N S L K D] as a view of buffer[S N L*K*D], for head = (L, K)."""
    dim = buffer.shape[-1] // math.prod(head)
    return buffer.as_strided(
        (*buffer.shape[:2], *head, dim),
        (*buffer.stride()[:2], head[1] * dim, dim, 1),
        buffer.storage_offset(),
    ).transpose(0, 1)
