"""The inputs of a step, derived on the GPU: token ids, positions, slots, rotary angles.

The host sends a few numbers per slice (`Columns`); everything per token is looked up where
sequences are kept, on the GPU: a token sampled by one step is there for the next one before the
host has seen it. `derive` can be captured: what it reads lies at fixed addresses (`Addresses`), and
the numbers of slices, tokens and logits are all that a launch passes.
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

from spaninfer_kernels_cuda.inputs.addresses import Addresses, Columns, Group, Rope, columns_len
from spaninfer_kernels_cuda.inputs.tuning import launch_of, token_blocks

__all__ = [
    "VARIANTS",
    "Addresses",
    "Columns",
    "Group",
    "PreparedInputs",
    "Rope",
    "columns_len",
    "prepare",
]


class WriteArguments(NamedTuple):
    """Arguments of write_words."""

    to: Pointer
    begins: Pointer
    words: Pointer


class DeriveArguments(NamedTuple):
    """Arguments of derive_inputs."""

    inputs: Pointer
    slices: Int32
    tokens: Int32
    logits: Int32


WRITE_WORDS = Signature("write_words", WriteArguments)
DERIVE_INPUTS = Signature("derive_inputs", DeriveArguments)
SOURCE = Source("spaninfer_kernels_cuda", "inputs/kernel.cu", kernels=(WRITE_WORDS, DERIVE_INPUTS))
VARIANT = Variant.of("derive_inputs", SOURCE, {})

VARIANTS: tuple[Variant, ...] = (VARIANT,)
"""The one variant there is."""


class PreparedInputs:
    """The kernels that write a step's inputs; nothing is allocated, launches pass addresses.

    `addresses` is the GPU's copy of `Addresses.words`, streams are handles.
    """

    workspace_bytes = 0

    def __init__(self, write: Kernel[WriteArguments], derive: Kernel[DeriveArguments]) -> None:
        # By the number of blocks: kernels and launches as keys take longer than what is launched.
        self._write = lru_cache(_KEPT)(lambda blocks: Call(write, launch_of(blocks)))
        self._derive = lru_cache(_KEPT)(lambda blocks: Call(derive, launch_of(blocks)))

    def write(
        self, to: object, begins: object, words: object, *, segments: int, stream: int
    ) -> None:
        """Copy words[begins[s]:begins[s + 1]] to address to[s], for each segment s.

        to[S] int64, begins[S + 1] and words int32; addresses are multiples of 4.
        """
        if segments:
            call = self._write(segments)  # a block each
            call(stream, WriteArguments(pointer_of(to), pointer_of(begins), pointer_of(words)))

    def derive(
        self, addresses: object, *, num_slices: int, num_tokens: int, num_logits: int, stream: int
    ) -> None:
        """Write the inputs of a step's tokens and of its rows of logits."""
        if num_slices:
            call = self._derive(token_blocks(num_tokens))
            arguments = DeriveArguments(pointer_of(addresses), num_slices, num_tokens, num_logits)
            call(stream, arguments)


def prepare(*, gpu: Gpu, cache: FileCache | None = None) -> PreparedInputs:
    """Return the kernels on `gpu`, compiled or cached."""
    compiled = compile_variant(VARIANT, gpu.arch, cache or user_cache())
    return PreparedInputs(load(compiled, gpu, WRITE_WORDS), load(compiled, gpu, DERIVE_INPUTS))


_KEPT = 1024  # launches of a kind; one takes about 2 kB
