"""Ragged attention of a batch: an object that owns its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from spaninfer_kernel_launch import (
    Allocate,
    ArraySpec,
    Interned,
    NamedCalls,
    Operator,
    Preparations,
    Result,
    ShapeError,
    Step,
    View,
    allocator,
    check_dense,
    check_rows,
    get_gpu,
    gpu_of,
    interned,
    match,
    new_results,
    numpy_dtype,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from span_attention.operands import check_device
from span_attention.ragged.options import RaggedOptions
from span_attention.ragged.prepared import RUN_VALUES, PreparedRagged, Rows, prepare

_ROW_BYTES = 16  # rows begin at multiples of this many
_EVERYTHING = 1 << 28  # rows ahead; more than a sequence has


class _Key(NamedTuple):
    """What runs depend on."""

    prepared: PreparedRagged
    num_rows: int
    num_slices: int


class _Planned(NamedTuple):
    """A planned batch, as runs read it; its arrays are held as long as it is planned."""

    key: _Key
    plan: int
    held: tuple[object, ...]


class BatchRagged:
    """Attention within packed sequences: rows see those of their own sequence, nothing is cached.

    Planned once per batch, run per layer. `num_heads` query heads share `num_kv_heads` of keys and
    values, all of `head_size` elements (a multiple of 8 up to 256) of one 16-bit float `dtype`. A
    row's result depends on its own sequence alone. Where runs are `biased`, scores get biases. All
    of it belongs to one stream.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_size: int,
        dtype: object,
        num_kv_heads: int | None = None,
        biased: bool = False,
    ) -> None:
        options = RaggedOptions(numpy_dtype(dtype).name, head_size, biased)
        self._asked = interned((options, num_heads, num_kv_heads or num_heads))
        self._planned: _Planned | None = None

    def plan(self, query_start_loc: object, *, num_rows: int, stream: object = None) -> None:
        """Divide a batch into tiles, on the GPU.

        Sequence r of R is the rows query_start_loc[r] .. query_start_loc[r + 1], int32[R + 1] on
        the GPU; the last number is at most `num_rows`. Nothing is read on the host: that the
        numbers ascend is not checked. Runs read the plan before they wait for the previous kernel.
        """
        (at,), planned = _plans.find((self._asked, num_rows), (query_start_loc,))
        key, allocate = planned
        handle = stream_handle(stream, query_start_loc)
        (memory,) = allocate(handle)
        plan = pointer_of(memory)
        if key.num_rows and key.num_slices:
            key.prepared.plan.start(handle, (plan, at, key.num_slices))
        self._planned = _Planned(key, plan, held=(query_start_loc, memory))

    def run(
        self,
        query: object,
        key: object,
        value: object,
        *,
        softmax_scale: float,
        softcap: float | None = None,
        window: int | None = None,
        ahead: int | None = None,
        biases: object = None,
        out: Any = None,
        stream: object = None,
    ) -> Any:
        """Return the attention of query[T H D] over key[T K D] and value[T K D], [T H D].

        Row i of a sequence sees rows i - window < j <= i + ahead; None: without that bound. To its
        scores, behind the softcap, biases[h, R + j - i] of float32 biases[H 2R+1] are added, of
        keys farther than R that of R.

        Rows may lie apart, as parts of one projection, and so may heads, all three equally: those
        that begin at multiples of 32 bytes are read fastest on Hopper. Without `out`, the result is
        a new array, dense; rows of no sequence are not written.
        """
        planned = self._planned
        if planned is None:
            raise ShapeError("no batch is planned; call plan(query_start_loc, …) before run")
        _check_bounds(window, ahead)
        seen_ahead = _EVERYTHING if ahead is None else ahead
        seen = 0 if window is None else window + seen_ahead
        slices, plan = planned.key.num_slices, planned.plan
        numbers = slices, plan, softmax_scale, softcap or 0.0, seen, seen_ahead
        new = _run.start(planned.key, (query, key, value, biases, out), numbers, stream)
        return new[0] if out is None else out


@prepared_once(256)
def _kernel_for(options: RaggedOptions, heads: int, kv_heads: int, gpu: int) -> PreparedRagged:
    """Return the attention of batches of any size on a GPU, compiled or cached."""
    return prepare(options, heads=heads, kv_heads=kv_heads, gpu=get_gpu(gpu))


def _prepare_plan(
    asked: tuple[Interned[tuple[RaggedOptions, int, int]], int], given: dict[str, ArraySpec]
) -> tuple[_Key, Allocate]:
    """Return what runs of a batch depend on, and the allocator of its plan.

    What is asked are options, heads of queries and of keys, and rows.
    """
    interned_asked, num_rows = asked
    options, heads, kv_heads = interned_asked.value
    starts = given["query_start_loc"]
    views = {"query_start_loc": view_at(starts)}
    bounds = match(query_start_loc=(views["query_start_loc"], "N"))["N"]
    check_dense(np.int32, **views)
    if not bounds:
        raise ShapeError("query_start_loc is empty; it holds one number more than sequences")
    gpu, slices = gpu_of(**views), bounds - 1
    prepared = _kernel_for(options, heads, kv_heads, gpu.index)
    plan: Result = ("plan", (prepared.plan_bytes(num_rows, slices),), np.uint8, 16)
    return _Key(prepared, num_rows, slices), allocator(starts, gpu, plan)


_plans = Preparations("query_start_loc", _prepare_plan)


def _prepare_run(key: _Key, given: dict[str, ArraySpec]) -> Step:
    """Return a run over arrays with these specs."""
    prepared, num_rows, slices = key
    reach = _reach(prepared, given.get("biases", ()))
    query, key_rows, value = (view_at(given[name]) for name in ("query", "key", "value"))
    size, dtype = prepared.options.head_size, numpy_dtype(prepared.options.dtype)
    match(
        query=(query, f"{num_rows} {prepared.heads} {size}"),
        key=(key_rows, f"{num_rows} {prepared.kv_heads} {size}"),
        value=(value, f"{num_rows} {prepared.kv_heads} {size}"),
    )
    head_stride = _head_stride(size, dtype, query=query, key=key_rows, value=value)
    check_device(prepared.gpu, query=query, key=key_rows, value=value)
    result: Result = ("out", (num_rows, prepared.heads, size), dtype, _ROW_BYTES)
    new = new_results(given, prepared.gpu, result)
    if not num_rows or not slices:
        return Step(prepared.gpu, NamedCalls(), new)
    strides = query.strides[0], key_rows.strides[0], value.strides[0], head_stride
    calls, constants = prepared.attend(Rows(num_rows, *strides))
    return Step(prepared.gpu, calls, new, constants=constants | {"reach": reach})


_run = Operator("query key value biases out", _prepare_run, numbers=RUN_VALUES)


def _check_bounds(window: int | None, ahead: int | None) -> None:
    for name, value, least in (("window", window, 1), ("ahead", ahead, 0)):
        if value is not None and not least <= value < _EVERYTHING:
            raise ShapeError(
                f"{name} is {value}; allowed is {least} to {_EVERYTHING - 1}, or None: no bound"
            )


def _reach(prepared: PreparedRagged, spec: ArraySpec) -> int:
    """Return the farthest distance that has a bias of its own; 0 without biases."""
    if bool(spec) != prepared.options.biased:
        has, wants = ("biases", "without") if spec else ("no biases", "with")
        raise ShapeError(f"the run has {has}; this batch is for runs {wants}: BatchRagged(biased=)")
    if not spec:
        return 0
    biases = view_at(spec)
    count = match(biases=(biases, f"{prepared.heads} N"))["N"]
    check_dense(np.float32, biases=biases)
    check_device(prepared.gpu, biases=biases)
    if count % 2 == 0:
        raise ShapeError(f"biases are {count} per head; one for distance 0, as many on each side")
    return count // 2


def _head_stride(size: int, dtype: np.dtype[Any], **arrays: View) -> int:
    """Return the elements from head to head. Raises ShapeError or DTypeError for arrays whose heads
    the kernels cannot read, or that differ.
    """
    for name, array in arrays.items():
        tokens, _, width = array.shape
        head = replace(array, shape=(tokens, width), strides=(array.strides[0], array.strides[2]))
        check_rows(dtype, _ROW_BYTES, **{name: head})
    found = {
        array.strides[1] for array in arrays.values() if array.shape[0] and array.shape[1] > 1
    } or {size}
    if len(found) > 1:
        raise ShapeError(f"heads of query, key and value are {sorted(found)} elements apart")
    (stride,) = found
    if stride < size or stride * dtype.itemsize % _ROW_BYTES:
        raise ShapeError(
            f"heads of {size} elements are {stride} apart; at least {size}, and a multiple of "
            f"{_ROW_BYTES} bytes"
        )
    return stride
