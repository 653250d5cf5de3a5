"""The numbers that packed codes stand for, as `codes` defines them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.quantisation.codes import (
    LEVELS,
    NUMBER_BITS,
    OUTER_BITS,
    UNIT,
    Codes,
    InnerScales,
)
from spaninfer_kernels_cpu.quantisation.layout import PANEL, STEP_BYTES, Layout

Numbers = NDArray[Any]

FLOATS: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}
EXPONENT_BIAS = 127
WORD_BITS = 32


def unpack_codes(panels: NDArray[np.uint8], layout: Layout, codes: Codes) -> NDArray[np.float32]:
    """Return the weight[O C] of panels[P, bytes]."""
    records = panels.reshape(layout.panels, layout.records, layout.record_bytes)
    codes_at, parameters_at = layout.record_parts
    numbers = _numbers(records[..., codes_at], layout, codes).astype(np.float64)
    beside = records[..., parameters_at]
    parameters = _flat(beside, codes) if codes.inner is None else _inner(beside, codes, codes.inner)
    scales, shifts = (each.reshape(-1, layout.groups)[..., None] for each in parameters)
    offset = shifts if codes.shift == "zero" else codes.offset
    meant = (numbers - offset) * scales
    if codes.shift == "bias":
        meant = meant + shifts
    rows = meant[..., : layout.group_channels].reshape(layout.panels * PANEL, -1)
    return rows[: layout.outputs, : layout.channels].astype(np.float32)


def _numbers(records: NDArray[np.uint8], layout: Layout, codes: Codes) -> Numbers:
    """Return the numbers [64 P, G, channels of a group] of the codes of records."""
    words = records.reshape(layout.panels, layout.records, -1, codes.bits, PANEL, 4)
    if codes.is_wide:
        whole: Numbers = _wide(words)
    else:
        whole = _paired(words) if codes.is_paired else _single(words, codes)
    rows = np.moveaxis(whole, 3, 1).reshape(layout.panels * PANEL, layout.groups, -1)
    if codes.table is None:
        return rows
    found: Numbers = np.array(codes.table, np.uint8)[rows]
    return found


def _single(words: NDArray[np.uint8], codes: Codes) -> NDArray[np.uint8]:
    """Return numbers [P records units 64 fours 4] of words [P records units words 64 4]."""
    whole = np.zeros((*words.shape[:3], PANEL, UNIT // 4, 4), np.uint8)
    first = place = 0
    for width in codes.planes:
        for step in range(UNIT // 4):
            word, shift = divmod(step * width, 8)
            bits = words[:, :, :, first + word] >> np.uint8(shift) & np.uint8((1 << width) - 1)
            whole[..., step, :] |= bits << np.uint8(place)
        first, place = first + width, place + width
    return whole


def _wide(words: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return the numbers of codes of 16 bits."""
    halves = np.ascontiguousarray(words).view(np.int16)  # [P records units words 64 2]
    fours = halves.reshape(*halves.shape[:3], UNIT // 4, 2, PANEL, 2)
    return np.ascontiguousarray(fours.transpose(0, 1, 2, 5, 3, 6, 4))


def _paired(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the numbers of codes that stand for two."""
    found = []
    for half in range(2):
        three = [words[..., 4 * half + place, :, :] for place in range(3)]
        fourth = words[..., 3, :, :] >> np.uint8(4 * half) & np.uint8(15)
        for bit, word in enumerate(three):
            fourth |= word >> np.uint8(7) << np.uint8(4 + bit)
        pairs = [*(word & np.uint8(127) for word in three), fourth]
        found += [part for pair in pairs for part in (pair % LEVELS, pair // LEVELS)]
    return np.stack(found, axis=-2)


def _flat(beside: NDArray[np.uint8], codes: Codes) -> tuple[Numbers, Numbers]:
    """Return scales and shifts [P 64 G]."""
    groups = beside.reshape(*beside.shape[:2], codes.record_groups, -1)
    cut = PANEL * NUMBER_BITS[codes.scale] // 8
    scales = _floats(groups[..., :cut], codes.scale)
    shifts = np.zeros_like(scales)
    if codes.shift == "zero":
        shifts = groups[..., cut:].astype(np.float64)
    elif codes.shift == "bias":
        shifts = _floats(groups[..., cut:], codes.scale)
    return _by_output(scales), _by_output(shifts)


def _by_output(numbers: Numbers) -> Numbers:
    """Return numbers [P records groups 64] as [P 64 G]."""
    return np.moveaxis(numbers, 3, 1).reshape(len(numbers), PANEL, -1)


def _floats(data: NDArray[np.uint8], kind: str) -> Numbers:
    if kind == "e8m0":
        powers: Numbers = np.ldexp(1.0, data.astype(np.int32) - EXPONENT_BIAS)
        return powers
    numbers: Numbers = np.ascontiguousarray(data).view(FLOATS[kind]).astype(np.float64)
    return numbers


def _inner(beside: NDArray[np.uint8], codes: Codes, inner: InnerScales) -> tuple[Numbers, Numbers]:
    """Return scales and biases [P 64 G] of strings of bits."""
    words = _words(beside, codes)
    groups, kinds = codes.record_groups, 2 if codes.shift == "bias" else 1
    found = []
    for kind in range(kinds):
        places = (np.arange(groups) + kind * groups) * inner.bits
        whole = np.stack([_field(words, int(place), inner.bits) for place in places], -1)
        outer = _field(words, kinds * groups * inner.bits + OUTER_BITS * kind, OUTER_BITS)
        numbers = whole.astype(np.float64) - (inner.offset if kind == 0 else 0)
        found.append(numbers * outer.astype(np.uint16).view(np.float16)[..., None])
    scales, minimums = (np.moveaxis(each, 2, 1) for each in (found[0], found[-1]))
    shape = len(scales), PANEL, -1
    return scales.reshape(shape), -minimums.reshape(shape)


def _words(beside: NDArray[np.uint8], codes: Codes) -> list[NDArray[np.uint32]]:
    """Return words of 32 bits [P records 64], the last perhaps a half."""
    whole, rest = divmod(codes.parameter_bits, WORD_BITS)
    cut = whole * STEP_BYTES
    words = np.ascontiguousarray(beside[..., :cut]).view(np.uint32)
    words = words.reshape(*beside.shape[:2], whole, PANEL)
    found = [words[..., number, :] for number in range(whole)]
    if rest:
        found.append(np.ascontiguousarray(beside[..., cut:]).view(np.uint16).astype(np.uint32))
    return found


def _field(words: list[NDArray[np.uint32]], place: int, width: int) -> NDArray[np.uint32]:
    """Return that many bits from a place on."""
    word, shift = divmod(place, WORD_BITS)
    bits = words[word] >> np.uint32(shift)
    if shift + width > WORD_BITS:
        bits = bits | words[word + 1] << np.uint32(WORD_BITS - shift)
    return bits & np.uint32((1 << width) - 1)
