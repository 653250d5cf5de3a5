"""The kernels of grouped GEMM: signatures and launches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from spaninfer_kernel_launch import Call, Int32, NamedCalls, Pointer, Signature, TensorMap

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

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as in `Addresses`."""
        return NamedCalls.of(self.call)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = GeneralArguments(at.out, at.weight, at.x, at.bias, at.order, at.ends)
        self.call(handle, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class OnHopperStream:
    """stream.cu, loaded."""

    shape: Shape
    dtype: str
    tile: Stream
    call: Call[StreamArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as in `Addresses`."""
        maps = {"weight_map": ("weight", partial(_map_weights, self))}
        return NamedCalls(((self.call, {"weight": "weight_map"}),), maps)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        weight = _map_weights(self, at.weight)
        self.call(handle, StreamArguments(at.out, weight, at.x, at.bias, at.order, at.ends))


@dataclass(frozen=True, slots=True, eq=False)
class OnHopperPrompt:
    """prompt.cu or swapped_prompt.cu, loaded, and sort.cu where rows are sorted for it."""

    shape: Shape
    dtype: str
    tile: Prompt
    gathers: bool  # of the order it is given
    sort: Call[SortArguments] | None
    call: Call[PromptArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as in `Addresses`."""
        maps = {"weight_map": ("weight", partial(_map_weights, self))}
        call = self.call, {"weight": "weight_map", "x": "x_map"}
        if self.sort is None:
            return NamedCalls((call,), maps | {"x_map": ("x", partial(_map_rows, self))})
        maps |= {"x_map": ("workspace", partial(_map_rows, self))}
        return NamedCalls(((self.sort, {"sorted": "workspace"}), call), maps)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        x = at.x
        if self.sort is not None:
            x = at.workspace
            self.sort(handle, SortArguments(x, at.x, at.order, at.ends))
        weight = _map_weights(self, at.weight)
        rows = _map_rows(self, x)
        arguments = PromptArguments(at.out, weight, rows, at.bias, at.ends, at.ticket, at.order)
        self.call(handle, arguments)


@lru_cache(maxsize=4096)
def _map_weights(kernel: OnHopperStream | OnHopperPrompt, at: int) -> bytes:
    """Return the tensor map of all experts' weights at this address."""
    return map_weights(at, kernel.dtype, kernel.shape, kernel.tile)


@lru_cache(maxsize=4096)
def _map_rows(kernel: OnHopperPrompt, at: int) -> bytes:
    """Return the tensor map of rows of x at this address."""
    box_rows = kernel.tile.box_rows(gathers=kernel.gathers)
    return map_rows(at, kernel.dtype, kernel.shape, box_rows=box_rows)


@dataclass(frozen=True, slots=True)
class OnAnyCoded:
    """coded.cu or coded_hopper.cu, loaded."""

    call: Call[CodedArguments]

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as in `Addresses`."""
        return NamedCalls.of(self.call)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch it on the stream with this handle."""
        arguments = CodedArguments(at.out, at.weight, at.factors, at.x, at.bias, at.order, at.ends)
        self.call(handle, arguments)
