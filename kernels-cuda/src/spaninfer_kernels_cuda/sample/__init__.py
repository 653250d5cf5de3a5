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
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    BEFORE_HOPPER,
    Call,
    FileCache,
    Gpu,
    Kernel,
    Launch,
    ShapeError,
    Source,
    Variant,
    check_dense,
    clusters_at_once,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    pointer_of,
    result_array,
    stream_handle,
    user_cache,
    view_of,
)

from spaninfer_kernels_cuda.sample.parameters import PARAMETERS, defaults
from spaninfer_kernels_cuda.sample.tuning import (
    MOST_BLOCKS,
    SHAPES,
    blocks_of_row,
    check,
    shared_bytes,
)

__all__ = [
    "PARAMETERS",
    "SOURCE",
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

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "sample/kernel.cu",
    headers=(
        *("types.cuh", "reduce.cuh", "overlap.cuh", "cluster.cuh"),
        *("mma.cuh", "copy.cuh", "prefetch.cuh"),
    ),
    parts=tuple(
        f"sample/{part}.cuh"
        for part in (
            *("shared", "keys", "rows", "race", "best", "search", "collect", "search_row", "cut"),
            *("report", "revise"),
        )
    ),
)
ENTRIES = ("sample_revise", "sample_draw", "sample_report")


class Status(IntEnum):
    """What became of a row."""

    DRAWN = 0
    ALL_MASKED = 1  # no logit is above -inf
    INFINITE = 2  # a logit is +inf
    NOT_A_NUMBER = 3


@dataclass(frozen=True, slots=True)
class Pools:
    """Lists that records point into: `first` entry and `count`. Device arrays, or their addresses.

    word i is word_tokens[word_bounds[i] : word_bounds[i + 1]]; a word of one token bans it.
    """

    bias_ids: object = 0  # int32
    biases: object = 0  # float32
    word_bounds: object = 0  # int32
    word_tokens: object = 0  # int32
    end_ids: object = 0  # int32


@dataclass(frozen=True, slots=True)
class Report:
    """Where log-probabilities go, for rows whose record asks: device arrays, or their addresses.

    The first entries of a row of `top_ids` and `top`, as many as its record asks for, are written,
    likeliest first; -1 and -inf where fewer tokens are allowed.
    """

    chosen: object  # float32[R]
    ranks: object  # int32[R], 1 is the likeliest
    top_ids: object  # int32[R top]
    top: object  # float32[R top]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sampling of one size, compiled and loaded: `launch` passes pointers, and nothing else.

    `workspace_bytes` is what revised rows need of 16-byte aligned memory, whatever is in it.
    """

    rows: int
    length: int
    top: int
    workspace_bytes: int
    _calls: tuple[Call, Call, Call] | None
    _row_stride: int
    _token_stride: int

    def launch(
        self,
        logits: object,
        *,
        parameters: object,
        slots: object,
        positions: object,
        out: object,
        status: object,
        tokens: object = 0,
        mask: object = 0,
        pools: Pools | None = None,
        report: Report | None = None,
        workspace: object = 0,
        stream: object = None,
    ) -> None:
        """Draw a token per row of logits[R V] into out[R] int32, its `Status` into status[R] int32.

        `parameters` are uint8[N 88], records of `PARAMETERS`; `mask` int32[N ceil(V / 32)], bit
        t % 32 of word t // 32 set where token t is allowed, read for records with `masked`.
        `tokens` int32[N token_stride] is the token buffer: what is drawn is also written to
        tokens[slot, position], and with a `workspace`, tokens[slot, :position] is what penalties
        and bans look at. Without a workspace, records must ask for neither them nor bias. With a
        `report`, log-probabilities follow. Arrays may be given as addresses. Without a stream, the
        current one of logits' framework.
        """
        if self._calls is None:
            return
        handle = stream_handle(stream, logits)
        at, wishes, slot, place = map(pointer_of, (logits, parameters, slots, positions))
        drawn, known, allowed = map(pointer_of, (out, tokens, mask))
        touched = pointer_of(workspace)
        revised = touched + _touched_bytes(self.rows, self.length) if touched else 0
        revise, draw, _ = self._calls
        if touched:
            lists = pools or Pools()
            addresses = (pointer_of(getattr(lists, field.name)) for field in fields(Pools))
            revise(
                *(handle, touched, revised, at, wishes, slot, place, known, *addresses),
                *(self.length, self._row_stride, self._token_stride),
            )
        draw(
            *(handle, drawn, pointer_of(status), known, at, wishes, slot, place),
            *(allowed, touched, revised, self.length, self._row_stride, self._token_stride),
        )
        if report is not None:
            self.report(
                *(logits, report),
                parameters=parameters,
                slots=slots,
                positions=positions,
                drawn=out,
                status=status,
                mask=mask,
                workspace=workspace,
                stream=stream,
            )

    def report(
        self,
        logits: object,
        report: Report,
        *,
        parameters: object,
        slots: object,
        positions: object,
        drawn: object,
        status: object,
        mask: object = 0,
        workspace: object = 0,
        stream: object = None,
    ) -> None:
        """Write log-probabilities of the tokens drawn[R], which the last launch drew.

        The other arguments are those of that launch; `workspace` as it has left it is needed where
        a record asks for processed logits.
        """
        if self._calls is None:
            return
        at, wishes, slot, place = map(pointer_of, (logits, parameters, slots, positions))
        places = map(pointer_of, (report.chosen, report.ranks, report.top_ids, report.top))
        touched = pointer_of(workspace)
        revised = touched + _touched_bytes(self.rows, self.length) if touched else 0
        *_, tell = self._calls
        tell(
            *(stream_handle(stream, logits), *places, self.top, pointer_of(drawn)),
            *(pointer_of(status), at, wishes, slot, place, pointer_of(mask), touched, revised),
            *(self.length, self._row_stride),
        )


def variant_for(dtype: object, arch: str) -> Variant:
    """Return the variant for logits of `dtype` on `arch`, which holds all of `ENTRIES`."""
    element = element_of(dtype)
    shape = SHAPES[arch]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "THREADS": shape.threads,
        "STAGES": shape.stages,
        "SHARED_BYTES": shared_bytes(shape),
    }
    alike = tuple(name for name in element.architectures if SHAPES[name] == shape)
    return Variant.of("sample_draw", SOURCE, macros, alike)


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
        workspace_bytes=_touched_bytes(rows, length) + rows * length * 4,
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


def _touched_bytes(rows: int, length: int) -> int:
    """Return the bytes of a bit per logit: rows of whole words, all of it in units of 16 bytes."""
    return -(-rows * -(-length // 32) * 4 // 16) * 16


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


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(dtype, arch)
    for dtype, architectures in (
        (np.float32, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
        (np.float16, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
        (ml_dtypes.bfloat16, ("sm_80", "sm_90a", "sm_100a", "sm_120")),
    )
    for arch in architectures
)
"""All there are: one per element type and architecture."""
