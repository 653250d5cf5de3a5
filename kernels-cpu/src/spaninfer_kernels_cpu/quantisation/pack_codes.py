"""Published codes, repacked into the memory order of GEMMs without requantisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from spaninfer_host_limits import usable_cpus

from spaninfer_kernels_cpu.errors import FormatError, ShapeError
from spaninfer_kernels_cpu.quantisation.codes import OUTER_BITS, Codes, InnerScales
from spaninfer_kernels_cpu.quantisation.layout import PANEL, Format, Layout
from spaninfer_kernels_cpu.quantisation.pack_kernel import write_codes
from spaninfer_kernels_cpu.quantisation.packed import MAX_WORKERS, NUMBERS_AT_ONCE, Packed
from spaninfer_kernels_cpu.quantisation.unpack_codes import EXPONENT_BIAS, FLOATS, WORD_BITS
from spaninfer_kernels_cpu.runtime.numa import numa_nodes, place
from spaninfer_kernels_cpu.runtime.weight_memory import weight_memory
from spaninfer_kernels_cpu.runtime.workers import share

Numbers = NDArray[Any]


class CodeRows(Protocol):
    """A stack of weights[N O C] whose codes are read some rows at a time."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def rows(self, number: int, some: slice) -> GroupedCodes:
        """Return rows of one of the weights, without the axis N."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """Weights[N O C] as the codes, scales and shifts of a format (`codes.Codes`); a CodeRows.

    codes         uint8 [N O C]
    scales        float [N O G], rounded to the format's; whole numbers where they are inner ones
    shifts        biases or zero points as scales; minimums, whole numbers, of inner scales
    outer         float [N O S], a number for each 256 channels, of inner scales
    outer_shifts  as outer, of minimums
    """

    codes: NDArray[np.uint8]
    scales: Numbers
    shifts: Numbers | None = None
    outer: Numbers | None = None
    outer_shifts: Numbers | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        return self.codes.shape

    def rows(self, number: int, some: slice) -> GroupedCodes:
        """Return rows of one of the weights, without the axis N."""
        return self._of(
            lambda name: _optional(getattr(self, name), lambda array: array[number, some])
        )

    @classmethod
    def below(cls, parts: Sequence[GroupedCodes]) -> GroupedCodes:
        """Return weights without the axis N below one another; one alone is not copied."""
        if len(parts) == 1:
            return parts[0]

        def joined(name: str) -> Any:
            arrays = [getattr(part, name) for part in parts]
            return _optional(arrays[0], lambda _: np.concatenate(arrays))

        return cls._of(joined)

    @classmethod
    def _of(cls, field: Callable[[str], Any]) -> GroupedCodes:
        return cls(**{each.name: field(each.name) for each in fields(cls)})


def _optional(array: Numbers | None, change: Callable[[Numbers], Numbers]) -> Numbers | None:
    return None if array is None else change(array)


def pack_codes(parts: Sequence[CodeRows], format: Format) -> Packed:
    """Return N weights, each of the rows of all parts below one another, in a format of codes.

    Several threads read the rows of some panels at a time, in any order: apart from the result,
    this takes some megabytes whatever the size of the weight. Raises ShapeError unless codes,
    scales and shifts fit one another and the format's groups, FormatError for formats without
    codes.
    """
    if format.codes is None or format.codes.is_wide:
        raise FormatError(
            f"format is {format.kind}; codes are packed in formats with codes of at most 8 bits"
        )
    codes = format.codes
    count, _, channels = parts[0].shape
    layout = Layout(format, sum(part.shape[1] for part in parts), channels)
    panels = weight_memory((count * layout.panels, layout.panel_bytes))
    place(panels, numa_nodes())
    workers = min(usable_cpus(), MAX_WORKERS)
    at_once = max(1, NUMBERS_AT_ONCE // (PANEL * channels * workers))
    firsts = range(0, layout.panels, at_once)
    places = [(number, first) for number in range(count) for first in firsts]
    waiting = iter(places)  # which threads take from

    def work() -> None:
        for number, first in waiting:
            some = list(_read(parts, number, first * PANEL, (first + at_once) * PANEL))
            for part in some:
                _check(part, layout, codes)
            _fill(GroupedCodes.below(some), layout, codes, panels[number * layout.panels + first :])

    share(work, min(workers, len(places)))
    return Packed(layout, panels, count)


def _read(parts: Sequence[CodeRows], number: int, first: int, stop: int) -> Iterator[GroupedCodes]:
    """Yield rows [first, stop) of weight `number`, of parts that lie below one another."""
    for part in parts:
        rows = part.shape[1]
        if first < rows and stop > 0:
            yield part.rows(number, slice(max(0, first), min(rows, stop)))
        first, stop = first - rows, stop - rows


def _check(part: GroupedCodes, layout: Layout, codes: Codes) -> None:
    shape = len(part.codes), layout.channels
    groups = shape[0], -(-layout.channels // layout.group_channels)
    outer = (shape[0], layout.records) if codes.inner is not None else None
    expected = {
        "codes": shape,
        "scales": groups,
        "shifts": None if codes.shift == "none" else groups,
        "outer": outer,
        "outer_shifts": outer if codes.shift == "bias" else None,
    }
    for name, size in expected.items():
        array = getattr(part, name)
        if size != (None if array is None else array.shape):
            got = "none" if array is None else array.shape
            raise ShapeError(f"{name}: expected {size or 'none'} for {shape}, got {got}")


def _fill(weight: GroupedCodes, layout: Layout, codes: Codes, panels: NDArray[np.uint8]) -> None:
    """Write codes[O C] of some panels, the last of them filled up, into panels[P, bytes]."""
    count = -(-len(weight.codes) // PANEL)
    records = panels[:count].reshape(count, layout.records, layout.record_bytes)
    codes_at, parameters_at = layout.record_parts
    parameters = _Parameters(layout, count)
    if codes.inner is None:
        records[..., parameters_at] = parameters.flat(weight, codes)
    else:
        records[..., parameters_at] = parameters.inner(weight, codes, codes.inner)
    numbers = np.ascontiguousarray(weight.codes)
    record_channels = codes.record_groups * layout.group_channels
    for panel, some in enumerate(range(0, len(numbers), PANEL)):
        rows = numbers[some : some + PANEL]
        write_codes(
            rows.ctypes.data,
            len(rows),
            layout.channels,
            record_channels,
            codes.bits,
            layout.record_bytes,
            records[panel, 0, codes_at].ctypes.data,
        )


class _Parameters:
    """Scales and shifts of some panels as bytes [P records, bytes]."""

    def __init__(self, layout: Layout, count: int) -> None:
        self._layout, self._count = layout, count

    def flat(self, weight: GroupedCodes, codes: Codes) -> NDArray[np.uint8]:
        """Return those of groups, one group after the other."""
        parts = [_bytes_of(self._by_group(weight.scales), codes.scale)]
        if weight.shifts is not None:
            shifts = self._by_group(weight.shifts)
            is_zero = codes.shift == "zero"
            parts.append(shifts.astype(np.uint8) if is_zero else _bytes_of(shifts, codes.scale))
        return np.concatenate(parts, -1).reshape(self._count, self._layout.records, -1)

    def _by_group(self, numbers: Numbers) -> Numbers:
        """Return numbers [O G] as [P G 64], filled up with zeros."""
        filled = np.zeros((self._count * PANEL, self._layout.groups), numbers.dtype)
        filled[: len(numbers), : numbers.shape[1]] = numbers
        by_group = filled.reshape(self._count, PANEL, -1).swapaxes(1, 2)
        return np.ascontiguousarray(by_group)

    def inner(self, weight: GroupedCodes, codes: Codes, inner: InnerScales) -> NDArray[np.uint8]:
        """Return strings of bits."""
        groups, records = codes.record_groups, self._layout.records
        bits = _BitString(codes.parameter_bits, (self._count, records, PANEL))
        for numbers in (weight.scales, weight.shifts):
            if numbers is not None:
                spread = self._by_group(numbers).reshape(self._count, records, groups, PANEL)
                for group in range(groups):
                    bits.append(spread[:, :, group], inner.bits)
        for outer in (weight.outer, weight.outer_shifts):
            if outer is not None:
                bits.append(self._of_records(outer).view(np.uint16), OUTER_BITS)
        return bits.data()

    def _of_records(self, numbers: Numbers) -> NDArray[np.float16]:
        filled = np.zeros((self._count * PANEL, self._layout.records), np.float16)
        filled[: len(numbers)] = numbers
        by_record = filled.reshape(self._count, PANEL, -1).swapaxes(1, 2)
        return np.ascontiguousarray(by_record)


class _BitString:
    """Numbers appended to strings of bits, one string for each place of a shape."""

    def __init__(self, num_bits: int, shape: tuple[int, ...]) -> None:
        self._words = np.zeros((-(-num_bits // WORD_BITS), *shape), np.uint32)
        self._place, self._rest = 0, num_bits % WORD_BITS

    def append(self, numbers: Numbers, width: int) -> None:
        """Append whole numbers that `width` bits hold."""
        word, shift = divmod(self._place, WORD_BITS)
        bits = numbers.astype(np.uint32)
        self._words[word] |= bits << np.uint32(shift)
        if shift + width > WORD_BITS:
            self._words[word + 1] |= bits >> np.uint32(WORD_BITS - shift)
        self._place += width

    def data(self) -> NDArray[np.uint8]:
        """Return words [P records words 64] as bytes, the last perhaps half words."""
        words = np.moveaxis(self._words, 0, 2)
        shape = (*words.shape[:2], -1)
        if not self._rest:
            return np.ascontiguousarray(words).view(np.uint8).reshape(shape)
        whole = np.ascontiguousarray(words[..., :-1, :]).view(np.uint8).reshape(shape)
        half = np.ascontiguousarray(words[..., -1, :].astype(np.uint16)).view(np.uint8)
        return np.concatenate([whole, half.reshape(shape)], -1)


def _bytes_of(numbers: Numbers, kind: str) -> NDArray[np.uint8]:
    """Return floats [P G 64] as the bytes [P G, bytes] of a kind."""
    if kind == "e8m0":
        exponents = np.frexp(numbers)[1] - 1 + EXPONENT_BIAS
        return np.where(numbers == 0, 0, exponents).astype(np.uint8)
    return np.ascontiguousarray(numbers.astype(FLOATS[kind])).view(np.uint8)
