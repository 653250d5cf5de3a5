"""The kernels of grouped GEMM: signatures and launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from spaninfer_kernel_launch import Call, Int32, Pointer, Signature, TensorMap

from spaninfer_kernels_cuda.grouped_gemm.maps import map_rows, map_weights
from spaninfer_kernels_cuda.grouped_gemm.tuning import Prompt, Shape, Stream


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
    """Arguments of grouped_prompt and grouped_swapped_prompt."""

    out: Pointer
    weight: TensorMap
    x: TensorMap
    bias: Pointer
    ends: Pointer
    ticket: Pointer
    order: Pointer


class Sizes(NamedTuple):
    """E, k, N and K."""

    experts: Int32
    chosen: Int32
    rows: Int32
    inner: Int32


class PromptSizes(NamedTuple):
    """k, E, N and K."""

    chosen: Int32
    experts: Int32
    rows: Int32
    inner: Int32


class SortArguments(NamedTuple):
    """Arguments of grouped_sort."""

    sorted: Pointer
    x: Pointer
    order: Pointer
    ends: Pointer


class SortSizes(NamedTuple):
    """E, k, and vectors of 16 bytes in a row."""

    experts: Int32
    chosen: Int32
    vectors: Int32


class ClearArguments(NamedTuple):
    """The argument of grouped_clear."""

    ticket: Pointer


class CodedArguments(NamedTuple):
    """Arguments of grouped_coded, all addresses; 0 for those that there are not."""

    out: Pointer
    weight: Pointer
    factors: Pointer
    x: Pointer
    bias: Pointer
    order: Pointer
    ends: Pointer


class Addresses(NamedTuple):
    """Addresses of a GEMM's arrays; 0 for those that there are not.

    prompt.cu alone has a `workspace`, for rows that are sorted for it, and a `ticket`, four bytes
    that are zero before and after. Codes have `factors` of the weight's rows.
    """

    out: int
    weight: int
    x: int
    bias: int
    order: int
    ends: int
    workspace: int = 0
    ticket: int = 0
    factors: int = 0


GROUPED_GENERAL: Final = Signature("grouped_general", GeneralArguments, Sizes)
GROUPED_STREAM: Final = Signature("grouped_stream", StreamArguments, Sizes)
GROUPED_PROMPT: Final = Signature("grouped_prompt", PromptArguments, PromptSizes)
GROUPED_SWAPPED_PROMPT: Final = Signature("grouped_swapped_prompt", PromptArguments, PromptSizes)
GROUPED_CODED: Final = Signature("grouped_coded", CodedArguments, Sizes)
GROUPED_CODED_HOPPER: Final = Signature("grouped_coded_hopper", CodedArguments, Sizes)
GROUPED_SORT: Final = Signature("grouped_sort", SortArguments, SortSizes)
GROUPED_CLEAR: Final = Signature("grouped_clear", ClearArguments)


@dataclass(frozen=True, slots=True)
class OnAny:
    """general.cu, loaded."""

    call: Call[GeneralArguments]

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = GeneralArguments(at.out, at.weight, at.x, at.bias, at.order, at.ends)
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True)
class OnHopperStream:
    """stream.cu, loaded."""

    shape: Shape
    dtype: str
    tile: Stream
    call: Call[StreamArguments]

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        weight = map_weights(at.weight, self.dtype, self.shape, self.tile)
        self.call(handle, StreamArguments(at.out, weight, at.x, at.bias, at.order, at.ends))


@dataclass(frozen=True, slots=True)
class OnHopperPrompt:
    """prompt.cu or swapped_prompt.cu, loaded, and sort.cu where rows are sorted for it."""

    shape: Shape
    dtype: str
    tile: Prompt
    sort: Call[SortArguments] | None
    call: Call[PromptArguments]

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        x = at.x
        if self.sort is not None:
            x = at.workspace
            self.sort(handle, SortArguments(x, at.x, at.order, at.ends))
        weight = map_weights(at.weight, self.dtype, self.shape, self.tile)
        box_rows = self.tile.box_rows(gathers=bool(at.order))
        rows = map_rows(x, self.dtype, self.shape, box_rows=box_rows)
        arguments = PromptArguments(at.out, weight, rows, at.bias, at.ends, at.ticket, at.order)
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True)
class OnAnyCoded:
    """coded.cu or coded_hopper.cu, loaded."""

    call: Call[CodedArguments]

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = CodedArguments(at.out, at.weight, at.factors, at.x, at.bias, at.order, at.ends)
        self.call(handle, arguments)
