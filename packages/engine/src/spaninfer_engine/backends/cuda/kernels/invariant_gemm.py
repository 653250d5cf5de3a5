"""Batch-invariant GEMMs by cuBLAS: rows do not depend on how many rows there are.

cuBLAS chooses a kernel by the number of rows. On Hopper the kernels that do not cut K add along it
in the same order, whatever their tiles are, so that a row comes out the same to the last bit; those
that cut K do not, and can be forbidden. Some numbers of rows then get a kernel that is ten times
slower, or one of its own for a single row: those are filled up with rows that are not read.

All of that was found by trying (docs/decisions/0023), and is promised nowhere. So each weight's
shape is tried when it first comes, before anything is computed with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from spaninfer_engine.errors import ConfigError

_MIN_ROWS = (1, 16, 64, 256)  # rows that fewer are filled up to: one of these
_TRIED = (1, 2, 3, 8, 15, 16, 17, 33, 64, 65, 100, 128, 192, 256, 300, 384, 512, 777, 1024, 2048)
_MAX_RESULTS = 1 << 27  # of a trial: 256 MiB
_LAUNCHES = 4  # that are timed


class InvariantGemm:
    """x @ weight.T + bias, each row's bits the same whatever rows are beside it.

    From the first one on, cuBLAS cuts no K anywhere in the process.
    """

    def __init__(self) -> None:
        torch.backends.cuda.preferred_blas_library("cublaslt")  # the other one cannot be asked
        matmul = torch.backends.cuda.matmul
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
        matmul.allow_fp16_reduced_precision_reduction = (False, False)
        self._least: dict[tuple[int, int, bool], int] = {}  # by outputs, inputs, has bias

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return x[T C] @ weight[O C].T + bias[O].

        Raises ConfigError where cuBLAS computes rows of this weight in several ways.
        """
        key = (*weight.shape, bias is not None)
        least = self._least.get(key)
        if least is None:
            least = self._least[key] = _find_min_rows(weight, bias)
        return _filled_up(x, weight, bias, least)


def _filled_up(x: Tensor, weight: Tensor, bias: Tensor | None, least: int) -> Tensor:
    rows = len(x)
    if rows >= least or not rows:
        return F.linear(x, weight, bias)
    whole = x.new_empty(least, x.shape[1])
    whole[:rows] = x
    return F.linear(whole, weight, bias)[:rows]


def _find_min_rows(weight: Tensor, bias: Tensor | None) -> int:
    """Return which of `_MIN_ROWS` is fastest for few rows, of those that make all rows agree."""
    outputs, inputs = weight.shape
    generator = torch.Generator(weight.device).manual_seed(0)
    most = min(_TRIED[-1], _MAX_RESULTS // outputs)
    x = torch.randn((most, inputs), dtype=weight.dtype, device=weight.device, generator=generator)
    expected = F.linear(x, weight, bias)
    differing = {
        rows for rows in _TRIED
        if rows <= most and not torch.equal(F.linear(x[:rows], weight, bias), expected[:rows])
    }  # fmt: skip
    agreeing = [least for least in _MIN_ROWS if all(rows < least for rows in differing)]
    if not agreeing:
        raise ConfigError(
            "batch_invariant is not supported on this GPU: cuBLAS computes a GEMM with "
            f"{outputs} x {inputs} weights differently for {sorted(differing)} rows than "
            f"for {most}; leave it out"
        )
    return min(agreeing, key=lambda least: _time(lambda: _filled_up(x[:1], weight, bias, least)))


def _time(launch: Callable[[], object]) -> float:
    """Return the least time of a few launches, in ms."""
    times = []
    for _ in range(_LAUNCHES):
        begin, end = (_event() for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
