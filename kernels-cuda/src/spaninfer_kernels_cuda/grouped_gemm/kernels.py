"""The kernels of grouped GEMM: signatures and launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from spaninfer_kernel_launch import Call, Int32, Pointer, Signature, TensorMap
from spaninfer_kernel_launch.signature import TENSOR_MAP_BYTES

from spaninfer_kernels_cuda.grouped_gemm.maps import map_sorted, map_weights
from spaninfer_kernels_cuda.grouped_gemm.tuning import Prompt, Shape, Stream

_NO_MAP: Final = bytes(TENSOR_MAP_BYTES)


class GeneralArguments(NamedTuple):
    """Arguments of grouped_general, all addresses; 0 for those that there are not."""

    out: Pointer
    weight: Pointer
    x: Pointer
    bias: Pointer
    order: Pointer
    ends: Pointer


class StreamArguments(NamedTuple):
    """Arguments of grouped_stream."""

    out: Pointer
    weight: TensorMap
    x: Pointer
    bias: Pointer
    order: Pointer
    ends: Pointer


class PromptArguments(NamedTuple):
    """Arguments of grouped_prompt."""

    out: Pointer
    weight: TensorMap
    sorted: TensorMap
    x: Pointer
    bias: Pointer
    order: Pointer
    ends: Pointer


class Sizes(NamedTuple):
    """E, k, N and K."""

    experts: Int32
    chosen: Int32
    rows: Int32
    inner: Int32


GROUPED_GENERAL: Final = Signature("grouped_general", GeneralArguments, Sizes)
GROUPED_STREAM: Final = Signature("grouped_stream", StreamArguments, Sizes)
GROUPED_PROMPT: Final = Signature("grouped_prompt", PromptArguments, Sizes)


@dataclass(frozen=True, slots=True)
class OnAny:
    """general.cu, loaded."""

    call: Call[GeneralArguments]

    def start(self, handle: int, at: GeneralArguments) -> None:
        """Launch it on the stream with this handle."""
        self.call(handle, at)


@dataclass(frozen=True, slots=True)
class OnHopperStream:
    """stream.cu, loaded."""

    shape: Shape
    dtype: str
    tile: Stream
    call: Call[StreamArguments]

    def start(self, handle: int, at: GeneralArguments) -> None:
        """Launch it on the stream with this handle."""
        weight = map_weights(at.weight, self.dtype, self.shape, self.tile)
        self.call(handle, StreamArguments(at.out, weight, at.x, at.bias, at.order, at.ends))


@dataclass(frozen=True, slots=True)
class OnHopperPrompt:
    """prompt.cu, loaded."""

    shape: Shape
    dtype: str
    tile: Prompt
    call: Call[PromptArguments]

    def start(self, handle: int, at: GeneralArguments) -> None:
        """Launch it on the stream with this handle."""
        weight = map_weights(at.weight, self.dtype, self.shape, self.tile)
        rows = _NO_MAP if at.order else map_sorted(at.x, self.dtype, self.shape)
        self.call(handle, PromptArguments(at.out, weight, rows, at.x, at.bias, at.order, at.ends))
