"""Weights[N K] rounded to nearest in published formats, without calibration data.

GGUF's one-level types are rounded by the gguf package. Its two-level types, which the package only
reads, are rounded here: scales of groups are searched, then rounded as a block stores them.
llama.cpp searches in another way, and importance matrices and calibration data do better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from spaninfer_op_reference import E2M1, E4M3_MOST, IQ4_NL, to_e4m3

Array = NDArray[Any]

BLOCK = 256  # weights under one outer scale of GGUF
TRIED = np.linspace(0.75, 1.1, 36)  # scales, as parts of the one that reaches the largest size
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)  # Dettmers et al. 2023, "QLoRA": quantiles of the normal distribution


@dataclass(frozen=True)
class Published:
    """A format: bits per weight, what rounds to it, and if files round the head as well."""

    name: str
    bits: float
    round: Callable[[Array], Array]
    rounds_head: bool = False


# ---- parts ---------------------------------------------------------------------------------------


def _grouped(weight: Array, group: int) -> Array:
    return weight.astype(np.float64).reshape(len(weight), -1, group)


def _float16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def _nearest(x: Array, levels: Array) -> Array:
    """Return the level nearest to each number; levels ascend."""
    return levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, x)]


def _best(tried: list[tuple[Array, Array]]) -> Array:
    """Return of (parameters[... G 1], numbers - exact[... G n]) those of the least square error."""
    errors = np.stack([(off**2).sum(-1) for _, off in tried])
    parameters = np.stack([some for some, _ in tried])
    chosen = errors.argmin(0)[None, ..., None]
    return np.take_along_axis(parameters, chosen, 0)[0]


# ---- GGUF's types of two levels ------------------------------------------------------------------


def _symmetric(levels: Array, group: int, scale_bits: int) -> Callable[[Array], Array]:
    """Levels times a whole number of `scale_bits` per group times a float16 per block."""
    most = 2 ** (scale_bits - 1) - 1

    def rounded(weight: Array) -> Array:
        x = _grouped(weight, group)
        peak = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
        reach = np.where(peak == 0, 1e-12, peak) / levels[0]  # the larger side of the levels
        tried = [
            (scale, _nearest(x / scale, levels) * scale - x)
            for part in TRIED
            for scale in (part * reach, -part * reach)
        ]
        scale = _best(tried).reshape(len(weight), -1, BLOCK // group, 1)
        outer = _float16(np.abs(scale).max(2, keepdims=True) / most)
        outer = np.where(outer == 0, 1e-12, outer)
        whole = np.clip(np.rint(scale / outer), -most - 1, most)
        scale = (whole * outer).reshape(len(weight), -1, 1)
        scale = np.where(scale == 0, 1e-12, scale)
        return (_nearest(x / scale, levels) * scale).reshape(weight.shape)

    return rounded


def _with_minimums(bits: int, group: int, scale_bits: int) -> Callable[[Array], Array]:
    """Codes times a scale less a minimum, whole numbers per group times a float16 per block."""
    last, most = 2**bits - 1, 2**scale_bits - 1

    def rounded(weight: Array) -> Array:
        x = _grouped(weight, group)
        least = np.minimum(x.min(-1, keepdims=True), 0)
        reach = np.maximum(x.max(-1, keepdims=True) - least, 1e-12) / last

        def numbers(scale: Array, minimum: Array) -> Array:
            return np.clip(np.rint((x + minimum) / scale), 0, last) * scale - minimum

        pairs = [(p * reach, -least * q) for p in TRIED[::3] for q in (0.8, 0.9, 1.0)]
        tried = [(np.concatenate(pair, -1), numbers(*pair) - x) for pair in pairs]
        both = _best(tried).reshape(len(weight), -1, BLOCK // group, 2)
        outer = _float16(both.max(2, keepdims=True) / most)
        outer = np.where(outer == 0, 1e-12, outer)
        both = (np.clip(np.rint(both / outer), 0, most) * outer).reshape(len(weight), -1, 2)
        scale = np.where(both[..., :1] == 0, 1e-12, both[..., :1])
        return numbers(scale, both[..., 1:]).reshape(weight.shape)

    return rounded


def _iq4_nl(weight: Array) -> Array:
    x, levels = _grouped(weight, 32), np.array(IQ4_NL)
    peak = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
    reach = np.where(peak == 0, 1e-12, peak) / levels[0]
    scales = [_float16(part * reach * sign) for part in TRIED for sign in (1, -1)]
    scales = [np.where(scale == 0, 1e-12, scale) for scale in scales]
    scale = _best([(scale, _nearest(x / scale, levels) * scale - x) for scale in scales])
    return (_nearest(x / scale, levels) * scale).reshape(weight.shape)


def _by_gguf(name: str) -> Callable[[Array], Array]:
    kind = gguf.GGMLQuantizationType[name]
    return lambda weight: gguf.dequantize(gguf.quantize(np.float32(weight), kind), kind)


# ---- formats of Hugging Face folders -------------------------------------------------------------


def _nf4(weight: Array) -> Array:
    x = _grouped(weight, 64)
    scale = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-12)
    return (_nearest(x / scale, np.array(NF4)) * scale).reshape(weight.shape)


def _nvfp4(weight: Array) -> Array:
    x, levels = _grouped(weight, 16), np.array(sorted({*E2M1}))
    outer = np.abs(x).max() / (6 * E4M3_MOST)
    scale = to_e4m3(np.abs(x).max(-1, keepdims=True) / 6 / outer) * outer
    scale = np.where(scale == 0, 1e-12, scale)
    return (_nearest(x / scale, levels) * scale).reshape(weight.shape)


def _e4m3(rows: int | None, columns: int | None) -> Callable[[Array], Array]:
    """e4m3 with a scale per so many rows and columns, None for all."""

    def rounded(weight: Array) -> Array:
        height, width = rows or len(weight), columns or weight.shape[1]
        x = np.pad(np.float64(weight), ((0, -len(weight) % height), (0, -weight.shape[1] % width)))
        blocks = x.reshape(len(x) // height, height, -1, width)
        scale = np.maximum(np.abs(blocks).max((1, 3), keepdims=True), 1e-12) / E4M3_MOST
        numbers = (to_e4m3(blocks / scale) * scale).reshape(x.shape)
        return numbers[: len(weight), : weight.shape[1]]

    return rounded


def _int4(group: int, *, zero: bool) -> Callable[[Array], Array]:
    """The grids of GPTQ (symmetric) and AWQ (with zeros), float16 scales, rounded to nearest."""

    def rounded(weight: Array) -> Array:
        x = _grouped(weight, group)
        if not zero:
            scale = _float16(np.maximum(np.abs(x).max(-1, keepdims=True), 1e-6) / 7.5)
            return (np.clip(np.rint(x / scale), -8, 7) * scale).reshape(weight.shape)
        least = np.minimum(x.min(-1, keepdims=True), 0)
        reach = np.maximum(x.max(-1, keepdims=True), 0) - least
        scale = _float16(np.maximum(reach, 1e-6) / 15)
        offset = np.clip(np.rint(-least / scale), 0, 15)
        codes = np.clip(np.rint(x / scale) + offset, 0, 15)
        return ((codes - offset) * scale).reshape(weight.shape)

    return rounded


def _whole(first: int, last: int) -> Array:
    return np.arange(first, last + 1, dtype=np.float64)


FORMATS: tuple[Published, ...] = (
    Published("Q8_0", 8.5, _by_gguf("Q8_0"), True),
    Published("Q6_K", 6.5625, _symmetric(_whole(-32, 31), 16, 8), True),
    Published("Q5_K", 5.5, _with_minimums(5, 32, 6), True),
    Published("Q5_0", 5.5, _by_gguf("Q5_0"), True),
    Published("Q4_K", 4.5, _with_minimums(4, 32, 6), True),
    Published("IQ4_NL", 4.5, _iq4_nl, True),
    Published("Q4_0", 4.5, _by_gguf("Q4_0"), True),
    Published("IQ4_XS", 4.25, _symmetric(np.array(IQ4_NL), 32, 6), True),
    Published("Q3_K", 3.4375, _symmetric(_whole(-4, 3), 16, 6), True),
    Published("Q2_K", 2.625, _with_minimums(2, 16, 4), True),
    Published("FP8 per tensor", 8, _e4m3(None, None)),
    Published("FP8 per row", 8.0625, _e4m3(1, None)),
    Published("FP8 128x128", 8.002, _e4m3(128, 128)),
    Published("NF4 g64", 4.5, _nf4),
    Published("NVFP4", 4.5, _nvfp4),
    Published("MXFP4", 4.25, _by_gguf("MXFP4")),
    Published("AWQ grid g128", 4.156, _int4(128, zero=True)),
    Published("GPTQ grid g128", 4.125, _int4(128, zero=False)),
)
