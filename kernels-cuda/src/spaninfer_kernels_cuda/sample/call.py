"""The eager functions of sampling: checked and prepared once per shapes and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Gpu,
    Result,
    ShapeError,
    View,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    gpu_of,
    inspect_arrays,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    view_at,
)

from spaninfer_kernels_cuda.sample.kernels import TokenArguments
from spaninfer_kernels_cuda.sample.parameters import PARAMETERS
from spaninfer_kernels_cuda.sample.prepared import PreparedSample, prepare

_ID_BYTES = 4

PerRow: TypeAlias = Any
"""A number for all rows, or an array with one for each."""


def sample_from_logits(
    logits: object,
    temperature: PerRow = 1.0,
    top_k: PerRow = None,
    top_p: PerRow = None,
    min_p: PerRow = None,
    seed: PerRow = 0,
    *,
    positions: object = None,
    mask: object = None,
    out: object = None,
    status: object = None,
    stream: object = None,
) -> object:
    """Return a token id per row of logits[R V], int32[R].

    `temperature`, `top_p` and `min_p` are numbers or float32[R], `top_k` is a number or int32[R],
    `seed` a number or int64[R]; None for top_k, top_p or min_p leaves all tokens, and so does 0 for
    top_k. A temperature below 1e-5 is greedy. The random numbers of a row are a function of its
    seed, its position and the token: without positions[R] (int32), row r has position r, so that
    rows of one seed differ. `mask` int32[R ceil(V / 32)] has a bit for each token that is allowed.
    A row from which nothing can be sampled gets token 0; `status` int32[R] is given a `Status` per
    row. Logits are float32, float16 or bfloat16. Without `out`, the result is a new array. Raises
    ValueError for numbers out of range; ShapeError, DTypeError or DeviceError for arrays that do
    not fit.
    """
    heat, heats = _number_or_array(temperature, 1.0)
    k, ks = _number_or_array(top_k, 0)
    p, ps = _number_or_array(top_p, 1.0)
    least, leasts = _number_or_array(min_p, 0.0)
    one_seed, seeds = _number_or_array(seed, 0)
    _check_values(heat, k, p, least)
    one_seed = _signed(int(one_seed))
    at, specs = inspect_arrays(logits, out, status, positions, mask, heats, ks, ps, leasts, seeds)
    logits_at, to, status_at, given_positions, allowed, heats, ks, ps, leasts, seeds = at
    step, allocate = _checked(specs)
    handle = stream_handle(stream, logits)
    scratch, *new = allocate(handle)
    if out is None:
        (out,) = new
        to = pointer_of(out)
    records = pointer_of(scratch)
    slots = records + step.rows * PARAMETERS.itemsize
    written = records, slots, slots + step.rows * _ID_BYTES
    given = 1, given_positions, seeds, one_seed, heats, heat, ks, int(k), ps, p, leasts, least
    # In the kernel's order, as TokenArguments names them: 23 keywords take 1.5 us of 15.
    step.start(
        handle,
        TokenArguments._make((to, status_at, 0, logits_at, *written, allowed, *_UNUSED, *given)),
    )
    return out


_UNUSED = (0, 0, 0)  # kept, changed, processed


def _number_or_array(value: PerRow, neutral: float) -> tuple[float, PerRow]:
    """Return the number for all rows, and an array with one for each row, or None."""
    if value is None:
        return neutral, None
    if isinstance(value, (int, float)):
        return value, None
    return neutral, value


def _check_values(temperature: float, top_k: float, top_p: float, min_p: float) -> None:
    """Raise ValueError for invalid numbers; those in arrays are not checked."""
    if not 0.0 <= temperature < np.inf:
        raise ValueError(f"temperature is {temperature}; finite, and at least 0 (greedy)")
    if not 0 <= top_k < 2**31:
        raise ValueError(f"top_k is {top_k}; at least 0 (all tokens), less than 2^31")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}; above 0, at most 1 (all tokens)")
    if not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p is {min_p}; at least 0 (all tokens), at most 1")


def _signed(seed: int) -> int:
    """Return the int64 of the same 64 bits. Raises ValueError for more of them."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it has 64 bits")
    return seed - 2**64 if seed >= 2**63 else seed


_PER_ROW = (
    *(("temperature", np.float32), ("top_k", np.int32), ("top_p", np.float32)),
    *(("min_p", np.float32), ("seed", np.int64)),
)


@prepared_once(256)
def _checked(
    specs: tuple[ArraySpec, ...],
) -> tuple[PreparedSample, Callable[[int], tuple[Any, ...]]]:
    """Return the sampling of logits, results, positions and mask, and parameters, of these specs;
    and the allocator of the result.
    """
    (spec, *results, positions, mask), per_row = specs[:5], specs[5:]
    logits = view_at(spec)
    rows, length = match(logits=(logits, "R V")).values()
    views: dict[str, View] = {}
    lists = (*_PER_ROW, ("positions", np.int32))
    for (name, dtype), each in zip(lists, (*per_row, positions), strict=True):
        if each:
            views[name] = view_at(each)
            match(**{name: (views[name], f"{rows}")})
            check_dense(dtype, **{name: views[name]})
    if mask:
        views["mask"] = view_at(mask)
        match(mask=(views["mask"], f"{rows} {-(-length // 32)}"))
        check_dense(np.int32, mask=views["mask"])
    gpu = gpu_of(logits=logits, **views)
    step = _prepare(logits, gpu)
    out: Result = ("out", (rows,), np.int32, 1)
    for given, name in zip(results, ("out", "status"), strict=True):
        if given:
            check_results((given,), gpu, (name, *out[1:]))
    scratch_bytes = rows * (PARAMETERS.itemsize + 2 * _ID_BYTES)
    scratch: Result = ("scratch", (scratch_bytes,), np.uint8, PARAMETERS.alignment)
    return step, allocator(spec, gpu, scratch, *(() if results[0] else (out,)))


def _prepare(logits: View, gpu: Gpu) -> PreparedSample:
    """Return sampling of these logits. Raises ShapeError where a row's elements lie apart."""
    rows, length = logits.shape
    if rows and length > 1 and logits.strides[1] != 1:
        raise ShapeError(
            f"logits: the elements of a row must be contiguous, got strides {logits.strides}"
        )
    stride = logits.strides[0]
    return prepare(rows=rows, length=length, dtype=logits.dtype, gpu=gpu, row_stride=stride)


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

    `parameters` are uint8[N 88], records of `PARAMETERS` without penalties, bias, bad words
    and typical_p, which need `prepare`; slots[R], positions[R] and mask[N ceil(V / 32)] are as in
    `SampleBatch`.
    """
    given = (logits, parameters, slots, positions, mask, *(out or (None, None)))
    at, specs = inspect_arrays(*given)
    step, allocate = _checked_records(specs)
    handle = stream_handle(stream, logits)
    if out is None:
        tokens, status = out = allocate(handle)
        at[5:] = pointer_of(tokens), pointer_of(status)
    arguments = TokenArguments(
        out=at[5],
        status=at[6],
        tokens=0,
        logits=at[0],
        all_params=at[1],
        slots=at[2],
        positions=at[3],
        allowed=at[4],
        kept=0,
        changed=0,
        processed=0,
    )
    step.start(handle, arguments)
    return out


@prepared_once(256)
def _checked_records(
    specs: tuple[ArraySpec, ...],
) -> tuple[PreparedSample, Callable[[int], tuple[Any, Any]]]:
    """Return sampling for arrays with these specs, and the allocator of its results."""
    names = ("logits", "parameters", "slots", "positions", "mask")
    views = {name: view_at(spec) for name, spec in zip(names, specs, strict=False) if spec}
    axes = {"logits": "R V", "parameters": f"N {PARAMETERS.itemsize}"}
    axes |= {"slots": "R", "positions": "R"}
    sizes = match(**{name: (views[name], axes[name]) for name in axes})
    check_dense(np.uint8, parameters=views["parameters"])
    check_aligned(PARAMETERS.alignment, parameters=views["parameters"])
    if "mask" in views:
        match(mask=(views["mask"], f"{sizes['N']} {-(-sizes['V'] // 32)}"))
    lists = {name: view for name, view in views.items() if name not in ("logits", "parameters")}
    check_dense(np.int32, **lists)
    gpu = gpu_of(**views)
    results = (("out", (sizes["R"],), np.int32, 1), ("status", (sizes["R"],), np.int32, 1))
    check_results(specs[5:], gpu, *results)
    return _prepare(views["logits"], gpu), allocator(specs[0], gpu, *results)
