"""The TMA tensor maps of experts' weights and of rows of x, for stream.cu and those of prompts."""

from __future__ import annotations

from spaninfer_kernel_launch import encode_tensor_map

from spaninfer_kernels_cuda.grouped_gemm.tuning import CHUNK, Prompt, Shape, Stream


def map_weights(pointer: int, dtype: str, shape: Shape, tile: Stream | Prompt) -> bytes:
    """Return the map of all experts' weights in boxes of the rows of a tile.

    As [1 E N K] for stream.cu, whose copies have a cache policy, which takes four axes.
    """
    experts, outputs, inner = shape.experts, shape.outputs, shape.inner
    extra = (1,) if isinstance(tile, Stream) else ()
    return encode_tensor_map(
        pointer,
        dtype,
        shape=(*extra, experts, outputs, inner),
        strides=(*(experts * outputs * inner for _ in extra), outputs * inner, inner, 1),
        box=(*extra, 1, tile.outputs, CHUNK),
    )


def map_rows(pointer: int, dtype: str, shape: Shape, *, box_rows: int) -> bytes:
    """Return the map of sorted rows as [1 P K], in boxes of `box_rows`; of tokens, as [1 T K]."""
    rows = shape.rows // shape.chosen if box_rows == 1 else shape.rows
    return encode_tensor_map(
        pointer,
        dtype,
        shape=(1, rows, shape.inner),
        strides=(rows * shape.inner, shape.inner, 1),
        box=(1, box_rows, CHUNK),
    )
