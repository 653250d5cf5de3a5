"""Settings of the softmax of attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.attention_plan import NO_END
from spaninfer_kernels_cpu.attention.checks import demand
from spaninfer_kernels_cpu.errors import ShapeError, demand_size

Floats = NDArray[np.float32]

MAX_POSITION = NO_END  # of a token in its request: positions are int32


@dataclass(frozen=True, slots=True)
class Scores:
    """Transformations from q.k to the argument of the softmax.

    score = softcap * tanh(scale * q.k / softcap) + slopes[h] * (j - p) + biases[h, R + j - p], for
    positions p - window < j <= p + ahead that have keys; `ahead` None: for all behind p, too.
    Without softcap, slopes[H], biases[H 2R+1] (float32) or window, that part is left out; keys
    farther than R have the bias of those at R. Where windows are `chunked` they
    do not slide: p sees those of j // window == p // window (Llama 4).
    The bias differs from the usual slope * j by a constant per row, which softmax does not see
    and which float32 rounds less. Where it is `rounded` it is scale * slopes[h] * j instead, with
    slopes that are bfloat16, j and the product rounded to it (Falcon). sinks[H] (float32): one
    more score per head, without a value. `narrow`: products may be of bfloat16, to which queries,
    keys, values and weights are then rounded.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    slopes: Floats | None = None
    sinks: Floats | None = None
    rounded: bool = False
    ahead: int | None = 0
    chunked: bool = False
    biases: Floats | None = None
    narrow: bool = False

    def __post_init__(self) -> None:
        """Raise unless every number means something."""
        if self.softcap is not None and not self.softcap > 0:
            raise ShapeError(f"softcap is {self.softcap}; give a positive number, or None")
        if self.window is not None:
            demand_size("window", self.window, 1, MAX_POSITION)
        if self.chunked and (self.window is None or self.ahead != 0):
            raise ShapeError("chunked needs a window, and ahead=0")
        if self.ahead is not None:
            demand_size("ahead", self.ahead, 0, MAX_POSITION)
        for name, numbers in (("slopes", self.slopes), ("sinks", self.sinks)):
            if numbers is not None:
                demand(name, numbers, np.float32, "H", ordered=1)
        if self.biases is not None:
            demand("biases", self.biases, np.float32, "H B", ordered=2)
            if self.biases.shape[1] % 2 == 0:
                raise ShapeError(
                    f"biases has {self.biases.shape[1]} distances; as many before and behind the "
                    "query's own are an odd number"
                )


def ahead_of(scores: Scores) -> int:
    """Return `ahead` as a number: positions are below it."""
    return MAX_POSITION if scores.ahead is None else scores.ahead


def check_heads(heads: int, kv_heads: int, scores: Scores) -> None:
    """Raise unless as many query heads read each key head, and the scores know every one."""
    if not heads or not kv_heads or heads % kv_heads:
        raise ShapeError(f"{heads} query heads are not a multiple of {kv_heads} key/value heads")
    for name, numbers in (
        ("slopes", scores.slopes),
        ("sinks", scores.sinks),
        ("biases", scores.biases),
    ):
        if numbers is not None and len(numbers) != heads:
            unit = "numbers" if numbers.ndim == 1 else "rows"
            raise ShapeError(f"{name} has {len(numbers)} {unit} for {heads} query heads")
