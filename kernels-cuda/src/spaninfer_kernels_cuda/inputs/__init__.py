"""The inputs of a step, derived on the GPU: token ids, positions, slots, rotary angles.

The host writes a few numbers per slice (`Columns`); everything per token is looked up where
sequences are kept, on the GPU: a token sampled by one step is there for the next one before the
host has seen it. `derive` can be captured: what it reads lies at fixed addresses (`Addresses`), and
the numbers of slices, tokens and logits are all that a launch passes. What goes between host and
GPU lies in pinned memory, which `receive` reads and `send` writes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Int32,
    Kernel,
    Pointer,
    Signature,
    Source,
    Variant,
    compile_variant,
    load,
    pointer_of,
    user_cache,
)

from spaninfer_kernels_cuda.inputs.addresses import (
    COLUMNS,
    Addresses,
    Columns,
    Group,
    Rope,
    columns_len,
)
from spaninfer_kernels_cuda.inputs.tuning import blocks_of, blocks_of_step, launch_of

__all__ = [
    "VARIANTS",
    "Addresses",
    "Columns",
    "Group",
    "PreparedInputs",
    "Rope",
    "Segments",
    "columns_len",
    "prepare",
]


class ReceiveArguments(NamedTuple):
    """Arguments of receive_step."""

    to: Pointer
    begins: Pointer
    words: Pointer
    segments: Int32
    columns: Pointer
    sent: Pointer
    capacity: Int32
    slices: Int32


class SendArguments(NamedTuple):
    """Arguments of send_words."""

    to: Pointer
    words: Pointer
    num_words: Int32


class DeriveArguments(NamedTuple):
    """Arguments of derive_inputs."""

    inputs: Pointer
    slices: Int32
    tokens: Int32
    logits: Int32


RECEIVE_STEP = Signature("receive_step", ReceiveArguments)
DERIVE_INPUTS = Signature("derive_inputs", DeriveArguments)
SEND_WORDS = Signature("send_words", SendArguments)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "inputs/kernel.cu",
    headers=("overlap.cuh",),
    kernels=(RECEIVE_STEP, DERIVE_INPUTS, SEND_WORDS),
)
VARIANT = Variant.of("derive_inputs", SOURCE, {})

VARIANTS: tuple[Variant, ...] = (VARIANT,)
"""The one variant there is."""


class Segments(NamedTuple):
    """Words[begins[s]:begins[s + 1]] for the address to[s], for each of `number` segments s.

    Addresses of to[S] int64, begins[S + 1] and words int32 in pinned memory; the addresses in `to`
    are multiples of 4.
    """

    number: int
    to: int
    begins: int
    words: int


class PreparedInputs:
    """The kernels that write a step's inputs and send its results; launches pass addresses, streams
    are handles.
    """

    def __init__(
        self,
        receive: Kernel[ReceiveArguments],
        derive: Kernel[DeriveArguments],
        send: Kernel[SendArguments],
    ) -> None:
        # By the number of blocks: kernels and launches as keys take longer than what is launched.
        self._receive = lru_cache(_KEPT)(lambda blocks: Call(receive, launch_of(blocks)))
        self._derive = lru_cache(_KEPT)(lambda blocks: Call(derive, launch_of(blocks)))
        self._send = lru_cache(_KEPT)(lambda blocks: Call(send, launch_of(blocks)))

    def receive(
        self,
        segments: Segments,
        columns: object,
        sent: object,
        *,
        capacity: int,
        num_slices: int,
        stream: int,
    ) -> None:
        """Copy the segments, and the columns of so many slices from pinned memory to the GPU's.

        `sent` and `columns` are blocks of `Columns` for up to `capacity` slices.
        """
        call = self._receive(segments.number + COLUMNS)  # a block each
        arguments = ReceiveArguments(
            to=segments.to,
            begins=segments.begins,
            words=segments.words,
            segments=segments.number,
            columns=pointer_of(columns),
            sent=pointer_of(sent),
            capacity=capacity,
            slices=num_slices,
        )
        call(stream, arguments)

    def derive(
        self, addresses: object, *, num_slices: int, num_tokens: int, num_logits: int, stream: int
    ) -> None:
        """Write the inputs of a step's tokens and of its rows of logits.

        `addresses` is the GPU's copy of `Addresses.words`.
        """
        if num_slices:
            call = self._derive(blocks_of_step(num_tokens, num_logits))
            arguments = DeriveArguments(pointer_of(addresses), num_slices, num_tokens, num_logits)
            call(stream, arguments)

    def send(self, to: int, words: object, num_words: int, *, stream: int) -> None:
        """Copy the first of words[N] int32 to pinned memory at the address `to`."""
        call = self._send(blocks_of(num_words))
        call(stream, SendArguments(to, pointer_of(words), num_words))


def prepare(*, gpu: Gpu, cache: FileCache | None = None) -> PreparedInputs:
    """Return the kernels on `gpu`, compiled or cached."""
    compiled = compile_variant(VARIANT, gpu.arch, cache or user_cache())
    return PreparedInputs(
        load(compiled, gpu, RECEIVE_STEP),
        load(compiled, gpu, DERIVE_INPUTS),
        load(compiled, gpu, SEND_WORDS),
    )


_KEPT = 1024  # launches of a kind; one takes about 2 kB
