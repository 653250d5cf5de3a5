"""Prepared GEMMs: what is launched for one shape."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_kernel_launch import Call, NamedCalls, pointer_of, stream_handle

from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import Coded, CodedHopper
from spaninfer_kernels_cuda.grouped_gemm.kernels import (
    Addresses,
    ClearArguments,
    OnAny,
    OnAnyCoded,
    OnHopperPrompt,
    OnHopperStream,
)
from spaninfer_kernels_cuda.grouped_gemm.tuning import Shape, Tile


@dataclass(frozen=True, slots=True)
class PreparedGroupedGemm:
    """A grouped GEMM of one shape."""

    shape: Shape
    tile: Tile | Coded | CodedHopper
    workspace_bytes: int
    kernel: OnAny | OnAnyCoded | OnHopperStream | OnHopperPrompt | None
    ticket_clear: Call[ClearArguments] | None = None

    def launch(
        self,
        x: object,
        weight: object,
        ends: object,
        *,
        out: object,
        order: object = None,
        bias: object = None,
        workspace: object = None,
        ticket: object = None,
        factors: object = None,
        stream: object = None,
    ) -> None:
        """Write the GEMMs to `out`; `order` is given exactly where it was prepared for one.

        Without it, `ends` and weights are read before the previous launch on the stream has
        finished: `ends` must be older than that, as it is after the GEMM that needs an order.

        `workspace` is memory with any content, at a multiple of 16 bytes. From `ticket`, four bytes
        that are zero before and after (`clear`), blocks of prompts draw their tasks.

        Of codes, `weight` holds the records uint8 [E blocks chunks record_bytes] and `factors` the
        float32 [E, 64 * blocks] of all experts (quantized_gemm.PackedWeight).
        """
        at = Addresses(
            out=pointer_of(out),
            weight=pointer_of(weight),
            x=pointer_of(x),
            bias=pointer_of(bias),
            order=pointer_of(order),
            ends=pointer_of(ends),
            workspace=pointer_of(workspace),
            ticket=pointer_of(ticket),
            factors=pointer_of(factors),
        )
        self.start(stream_handle(stream, x), at)

    def clear(self, ticket: object, *, stream: object = None) -> None:
        """Initialise fresh memory as a ticket."""
        self.start_clear(stream_handle(stream, ticket), pointer_of(ticket))

    def start_clear(self, handle: int, ticket: int) -> None:
        """Initialise a ticket on the stream with this handle, the default stream included."""
        if self.ticket_clear is not None:
            self.ticket_clear(handle, ClearArguments(ticket))

    @property
    def draws(self) -> bool:
        """True if it draws its tasks from a ticket."""
        return self.ticket_clear is not None

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as in `Addresses`."""
        return NamedCalls() if self.kernel is None else self.kernel.by_name

    def start(self, handle: int, at: Addresses) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self.kernel is None:
            return
        self.kernel.start(handle, at)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """Both GEMMs of an expert layer for up to that many tokens, prepared.

    w13[E 2I H] holds gates and up interleaved by 8 rows, w2[E H I] the second weights.
    """

    first: PreparedGroupedGemm
    second: PreparedGroupedGemm

    @property
    def workspace_bytes(self) -> int:
        """Bytes of memory that either GEMM needs, one after the other."""
        return max(self.first.workspace_bytes, self.second.workspace_bytes)

    @property
    def draw(self) -> bool:
        """True if either GEMM draws its tasks from a ticket."""
        return self.first.draws or self.second.draws

    def start_clear(self, handle: int, ticket: int) -> None:
        """Initialise a ticket on the stream with this handle, the default stream included."""
        drawing = self.first if self.first.draws else self.second
        drawing.start_clear(handle, ticket)

    def up(
        self,
        x: object,
        w13: object,
        order: object,
        ends: object,
        *,
        out: object,
        bias: object = None,
        workspace: object = None,
        ticket: object = None,
        stream: object = None,
    ) -> None:
        """Write h[P I], the gated GEMMs of x[T H] with w13, in sorted order."""
        memory = {"workspace": workspace, "ticket": ticket}
        self.first.launch(x, w13, ends, out=out, order=order, bias=bias, stream=stream, **memory)

    def down(
        self,
        h: object,
        w2: object,
        ends: object,
        *,
        out: object,
        bias: object = None,
        workspace: object = None,
        ticket: object = None,
        stream: object = None,
    ) -> None:
        """Write y[P H], the GEMMs of h[P I] with w2, in sorted order: the launch after `up`."""
        memory = {"workspace": workspace, "ticket": ticket}
        self.second.launch(h, w2, ends, out=out, bias=bias, stream=stream, **memory)
