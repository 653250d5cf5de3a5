"""The eager functions of sampling: checked and prepared once per shapes and types."""

from __future__ import annotations

from math import inf
from typing import Any, TypeAlias

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Gpu,
    Operator,
    Result,
    ShapeError,
    Step,
    View,
    check_aligned,
    check_dense,
    gpu_of,
    match,
    new_results,
    view_at,
)

from spaninfer_kernels_cuda.sample.kernels import TokenArguments
from spaninfer_kernels_cuda.sample.parameters import PARAMETERS
from spaninfer_kernels_cuda.sample.prepared import PreparedSample, prepare

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
    numbers, arrays = [*_NEUTRAL], [logits, out, status, positions, mask, *_NO_ARRAYS]
    for at, value in enumerate((temperature, top_k, top_p, min_p, seed)):
        if isinstance(value, (int, float)):
            numbers[at] = value
        else:
            arrays[at - len(_NEUTRAL)] = value
    new = _sample_given.start(None, tuple(arrays), _checked(*numbers), stream)
    return new[0] if out is None else out


_NEUTRAL = (1.0, 0, 1.0, 0.0, 0)  # what the kernel does not read where there are arrays
_NO_ARRAYS = (None,) * len(_NEUTRAL)


def _checked(
    temperature: float, top_k: float, top_p: float, min_p: float, seed: float
) -> tuple[float, int, float, float, int]:
    """Return the numbers, of a seed the int64 of its 64 bits.

    Raises ValueError for invalid ones; those in arrays are not checked.
    """
    if not 0.0 <= temperature < inf:
        raise ValueError(f"temperature is {temperature}; finite, and at least 0 (greedy)")
    if not 0 <= top_k < 2**31:
        raise ValueError(f"top_k is {top_k}; at least 0 (all tokens), less than 2^31")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p is {top_p}; above 0, at most 1 (all tokens)")
    if not 0.0 <= min_p <= 1.0:
        raise ValueError(f"min_p is {min_p}; at least 0 (all tokens), at most 1")
    if not -(2**63) <= (seed := int(seed)) < 2**64:
        raise ValueError(f"seed is {seed}; it has 64 bits")
    return temperature, int(top_k), top_p, min_p, seed - 2**64 if seed >= 2**63 else seed


_WITHOUT = dict.fromkeys(("tokens", "kept", "changed", "processed"), 0)  # penalties, typical_p
_PER_ROW = {
    "temperatures": ("temperature", np.float32),
    "top_ks": ("top_k", np.int32),
    "top_ps": ("top_p", np.float32),
    "min_ps": ("min_p", np.float32),
    "seeds": ("seed", np.int64),
    "positions": ("positions", np.int32),
}


def _prepare_given(_: None, given: dict[str, ArraySpec]) -> Step:
    """Return the sampling of arrays with these specs, for parameters that are given per call."""
    logits = view_at(given["logits"])
    rows, length = match(logits=(logits, "R V")).values()
    views: dict[str, View] = {}
    for name, (shown, dtype) in _PER_ROW.items():
        if name not in given:
            continue
        views[shown] = view_at(given[name])
        match(**{shown: (views[shown], f"{rows}")})
        check_dense(dtype, **{shown: views[shown]})
    if "mask" in given:
        views["mask"] = view_at(given["mask"])
        match(mask=(views["mask"], f"{rows} {-(-length // 32)}"))
        check_dense(np.int32, mask=views["mask"])
    gpu = gpu_of(logits=logits, **views)
    sampling = _prepare(logits, gpu)
    new = new_results(given, gpu, ("out", (rows,), np.int32, 1))
    new_results(given, gpu, ("status", (rows,), np.int32, 1))  # checked, but never allocated
    calls = sampling.by_name(
        {"all_params": "records", "allowed": "mask", "given_positions": "positions"}
        | {"slots": "own_slots", "positions": "own_positions"}
    )
    scratch: tuple[Result, ...] = (
        ("records", (rows,), PARAMETERS, PARAMETERS.alignment),
        ("own_slots", (rows,), np.int32, 1),
        ("own_positions", (rows,), np.int32, 1),
    )
    return Step(gpu, calls, new, scratch, {"is_given": 1, **_WITHOUT})


_sample_given = Operator(
    "logits out status positions mask temperatures top_ks top_ps min_ps seeds",
    _prepare_given,
    numbers="temperature top_k top_p min_p seed",
    maxsize=256,
)


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
    arrays = logits, parameters, slots, positions, mask, *(out or (None, None))
    new = _sample.start(None, arrays, stream=stream)
    return out or new


def _prepare_records(_: None, given: dict[str, ArraySpec]) -> Step:
    """Return the sampling of arrays with these specs."""
    views = {name: view_at(spec) for name, spec in given.items() if name not in ("out", "status")}
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
    rows = (sizes["R"],)
    new = new_results(given, gpu, ("out", rows, np.int32, 1), ("status", rows, np.int32, 1))
    calls = _prepare(views["logits"], gpu).by_name({"all_params": "parameters", "allowed": "mask"})
    return Step(gpu, calls, new, constants=_WITHOUT | TokenArguments._field_defaults)


_sample = Operator(
    "logits parameters slots positions mask out status", _prepare_records, maxsize=256
)
