"""From logits to tokens, on the GPU: penalties, masks, cuts, seeded draws, log-probabilities.

Rows logits[R V] of float32, float16 or bfloat16; a row's elements contiguous, rows strided. What
each row wants lies in device memory, one record of `PARAMETERS` per slot; slots[R] int32 names the
slot of a row (-1: a row of padding, for which nothing is read or written) and positions[R] int32
the position of the token that is drawn. So a captured launch serves whatever a batch then asks for:
greedy rows beside drawn ones, cut, penalised and masked ones.

The definition is op-reference's `sample`: the same order of operations, the same random numbers of
(seed, position, token), smaller ids first among equals. Tokens are the same except where rounding
decides between two: probabilities here are exact to 2^-40 of the likeliest, temperatures are not
rounded into the logits. Locally typical sampling is not here.

A row from which nothing can be drawn gets the token 0 and a `Status`; the others are not concerned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    Call,
    FileCache,
    Gpu,
    Kernel,
    Launch,
    ShapeError,
    check_aligned,
    check_dense,
    clusters_at_once,
    compile_variant,
    gpu_of,
    load,
    match,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.sample.arguments import Pools, Report, Status
from spaninfer_kernels_cuda.sample.parameters import PARAMETERS, defaults
from spaninfer_kernels_cuda.sample.prepared import Prepared
from spaninfer_kernels_cuda.sample.tuning import (
    MOST_BLOCKS,
    SHAPES,
    blocks_of_row,
    check,
    shared_bytes,
    touched_bytes,
)
from spaninfer_kernels_cuda.sample.variant import ENTRIES, VARIANTS, variant_for

__all__ = [
    "PARAMETERS",
    "VARIANTS",
    "Pools",
    "Prepared",
    "Report",
    "Status",
    "defaults",
    "prepare",
    "sample",
    "variant_for",
]


def prepare(
    *,
    rows: int,
    length: int,
    dtype: object,
    gpu: Gpu,
    token_stride: int = 0,
    top: int = 0,
    row_stride: int | None = None,
    cache: FileCache | None = None,
) -> Prepared:
    """Return sampling from logits[rows length] on `gpu`, compiled, or from `cache`.

    `token_stride` counts elements from one row of the token buffer to the next, `row_stride` those
    from one row of logits to the next (`length` unless given); `top` is the second size of a
    report's arrays. Raises ShapeError or DTypeError for what no kernel takes, CompileError where
    there is no compiler.
    """
    check(rows, length, top)
    compiled = compile_variant(variant_for(dtype, gpu.arch), gpu.arch, cache or user_cache())
    calls = None
    if rows:
        revise, draw, tell = (load(compiled, gpu, entry) for entry in ENTRIES)
        alone = Launch((1, rows, 1), (SHAPES[gpu.arch].threads, 1, 1), overlaps=True)
        together = _launch(rows, blocks_of_row(rows, _at_once(draw)), gpu)
        calls = (
            Call(revise, alone, "PPPPPPPPPPPP iqi"),
            Call(draw, together, "PPPPPPPPPP iqi"),
            Call(tell, together, "PPPP i PPPPPPPPP iq"),
        )
    return Prepared(
        *(rows, length, top),
        workspace_bytes=touched_bytes(rows, length) + rows * length * 4,
        _calls=calls,
        _row_stride=length if row_stride is None else row_stride,
        _token_stride=token_stride,
    )


def _launch(rows: int, blocks: int, gpu: Gpu) -> Launch:
    """Return the launch in which each row has a cluster of so many blocks."""
    shape = SHAPES[gpu.arch]
    return Launch(
        *((blocks, rows, 1), (shape.threads, 1, 1)),
        shared_bytes=shared_bytes(shape),
        cluster=(blocks, 1, 1),
        overlaps=True,
    )


@lru_cache
def _at_once(kernel: Kernel) -> Mapping[int, int]:
    """Return how many clusters of 2, 3, … blocks run at the same time; none before Hopper."""
    if kernel.gpu.arch in BEFORE_HOPPER:
        return {}
    return {
        blocks: clusters_at_once(kernel, _launch(1, blocks, kernel.gpu))
        for blocks in range(2, MOST_BLOCKS + 1)
    }


_prepared = lru_cache(maxsize=256)(prepare)


def sample(
    logits: object,
    *,
    parameters: object,
    slots: object,
    positions: object,
    mask: object = None,
    out: tuple[object, object] | None = None,
    stream: object = None,
) -> tuple[object, object]:
    """Return a token per row of logits[R V] and its `Status`, both int32[R].

    `parameters` are uint8[N 88], records of `PARAMETERS` without bias, penalties and bans, which
    need `prepare`; slots[R], positions[R] and mask[N ceil(V / 32)] are as for `Prepared.launch`.
    Without `out`, the results are new arrays in the order of the stream, which torch.from_dlpack
    and cupy.from_dlpack take. Without a stream, the current one of logits' framework.
    """
    given = view_of(logits)
    lists = {"slots": view_of(slots), "positions": view_of(positions)}
    records = view_of(parameters)
    sizes = match(
        logits=(given, "R V"),
        parameters=(records, f"N {PARAMETERS.itemsize}"),
        slots=(lists["slots"], "R"),
        positions=(lists["positions"], "R"),
    )
    if sizes["R"] and sizes["V"] > 1 and given.strides[1] != 1:
        raise ShapeError(
            f"logits: the elements of a row must be contiguous, got strides {given.strides}"
        )
    check_dense(np.uint8, parameters=records)
    check_aligned(PARAMETERS.alignment, parameters=records)
    if mask is not None:
        lists["mask"] = view_of(mask)
        match(mask=(lists["mask"], f"{sizes['N']} {-(-sizes['V'] // 32)}"))
    check_dense(np.int32, **lists)
    gpu = gpu_of(logits=given, parameters=records, **lists)
    handle = stream_handle(stream, logits)
    tokens, status = out or (None, None)
    tokens = result_array(tokens, (sizes["R"],), np.int32, gpu, handle)
    status = result_array(status, (sizes["R"],), np.int32, gpu, handle, name="status")
    step = _prepared(
        rows=sizes["R"],
        length=sizes["V"],
        dtype=given.dtype,
        gpu=gpu,
        row_stride=given.strides[0],
    )
    step.launch(
        logits,
        parameters=records,
        slots=lists["slots"],
        positions=lists["positions"],
        out=tokens,
        status=status,
        mask=lists.get("mask", 0),
        stream=stream,
    )
    return tokens, status
