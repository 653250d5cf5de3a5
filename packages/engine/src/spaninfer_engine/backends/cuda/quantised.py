"""Quantised weights on the GPU: packed from checkpoints' codes, or rounded while loading.

Codes of up to 4 bits take 4, of up to 8 bits 8, and lose nothing: scales become float16 times a
power of two per row, which holds 11 bits of them and 28 binades below the largest of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from spaninfer_kernels_cuda import quantized_gemm
from spaninfer_kernels_cuda.activation import Act
from spaninfer_kernels_cuda.quantized_gemm import PackedWeight, QuantizedFormat
from spaninfer_op_reference import QuantizedWeight, WeightFormat, group_minimums, group_scales
from torch import Tensor

from spaninfer_engine.backends.cuda.quantised_gemm import QuantizedGemm
from spaninfer_engine.load.packing import Packing

_CHUNK, _BLOCK = quantized_gemm.CHUNK, quantized_gemm.BLOCK_ROWS
_GROUPS = (16, 32, 64, 128)
_TOP = 15  # log2 of the largest number that a row's scales and minimums become, at most


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """A LinearWeight: the rows of a packed weight behind `skipped` ones."""

    gemm: QuantizedGemm
    packed: PackedWeight
    skipped: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.packed.records.nbytes + self.packed.factors.nbytes)

    def multiply(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        *,
        gate: Act | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """See LinearWeight."""
        assert self.packed.gated == (gate is not None), "packed in another layout"
        if not self.skipped:
            return self.gemm.multiply(x, self.packed, bias, gate, residual)
        assert residual is None, "a part of a block has no place in a residual"
        out = self.gemm.multiply(x, self.packed, None, None, None)[:, self.skipped :]
        return out.contiguous() if bias is None else out + bias

    def __getitem__(self, rows: slice) -> QuantizedLinear:
        """Return the rows from `rows.start` to the last."""
        whole = self.packed
        assert not whole.gated, "rows of gates lie among those of up"
        block, skipped = divmod(rows.start + self.skipped, _BLOCK)
        first = block * _BLOCK
        packed = replace(
            whole,
            records=whole.records[block:],
            factors=whole.factors[first:],
            outputs=whole.outputs - first,
        )
        return replace(self, packed=packed, skipped=skipped)


# ---- from checkpoints ----------------------------------------------------------------------------


def kernel_format(formats: Sequence[WeightFormat]) -> QuantizedFormat | None:
    """Return the format in which GEMMs hold weights of these; None where there is none."""
    found = {format_of(each) for each in formats}
    return found.pop() if len(found) == 1 else None


def format_of(format: WeightFormat) -> QuantizedFormat | None:
    """Return the format that holds codes as they are, and scales within a rounding."""
    is_known = format.group_rows in (1, None) and not format.permuted and format.bits <= 8
    if not is_known or format.values == "e4m3":
        return None
    bits: Literal[4, 8] = 4 if format.bits <= 4 else 8
    if format.table is not None:
        if _integers(format.table) is None or format.zero != "none":
            return None
        bits = 8
    shift: quantized_gemm.Shift = "minimum"
    if format.zero in ("none", "integer"):
        shift = "none" if format.zero == "none" else "zero"
    group = format.group_columns
    if group is None and shift == "none":
        return QuantizedFormat(bits, None)
    if group is None or group % _CHUNK == 0:
        return QuantizedFormat(bits, _CHUNK, shift)
    return QuantizedFormat(bits, group, shift) if group in _GROUPS else None


def kept_bits(format: WeightFormat) -> float | None:
    """Return the bits of a weight as GEMMs hold it, scales included; None without a kernel."""
    kept = format_of(format)
    return None if kept is None else 8 * kept.record_bytes / (_CHUNK * _BLOCK)


def pack_stored(
    weights: Sequence[QuantizedWeight],
    format: QuantizedFormat,
    gemm: QuantizedGemm,
    upload: Callable[[NDArray[Any], Tensor], None],
    *,
    gated: bool,
) -> QuantizedLinear:
    """Return weights[N K] below one another, in the `kernel_format` of theirs."""
    rows, inner = [len(weight.codes) for weight in weights], weights[0].shape[1]
    codes = torch.empty((sum(rows), inner), dtype=torch.uint8, device=gemm.device)
    for weight, part in zip(weights, torch.split(codes, rows), strict=True):
        stored, offset = codes_of(weight, format)
        upload(stored, part)
        part += offset
    numbers = [numbers_of(weight, format) for weight in weights]
    scales, shifts, factors = (np.concatenate(each) for each in zip(*numbers, strict=True))
    return _pack(
        *(gemm, format, codes, _to(scales, gemm), _to(shifts, gemm)),
        _to(factors, gemm),
        gated=gated,
    )


def codes_of(weight: QuantizedWeight, format: QuantizedFormat) -> tuple[NDArray[np.uint8], int]:
    """Return codes uint8 [N K], and what is to be added to them, modulo 256, on the device.

    Those of a table are its entries.
    """
    if weight.format.table is None:
        is_centred = weight.format.zero == "none" and format.values == "integer"
        offset = 1 << (format.bits - 1) if is_centred else 0
        return np.ascontiguousarray(weight.codes).view(np.uint8), offset
    found = _integers(weight.format.table)
    assert found is not None
    entries: NDArray[np.uint8] = (np.array(found[0]) + 128).astype(np.uint8)
    return entries[weight.codes], 0


def numbers_of(
    weight: QuantizedWeight, format: QuantizedFormat
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """Return scales and shifts [N groups] of 16 bits, and factors float32 [N]."""
    rows, columns = weight.shape
    groups = 1 if format.group is None else -(-columns // format.group)
    scales = _per_group(group_scales(weight), weight, format, groups)
    if weight.format.table is not None:
        found = _integers(weight.format.table)
        assert found is not None
        scales = scales * found[1]
    if format.group is None:
        return np.zeros((rows, 0)), np.zeros((rows, 0)), scales[:, 0].astype(np.float32)
    shifts = np.zeros((rows, groups))
    if weight.format.zero == "minimum":
        shifts = _per_group(group_minimums(weight), weight, format, groups)
    elif weight.zeros is not None:
        shifts = _per_group(weight.zeros, weight, format, groups)
        if format.shift == "minimum":
            shifts = shifts * scales
    largest = np.abs(scales).max(axis=1)
    if format.shift == "minimum":
        largest = np.maximum(largest, np.abs(shifts).max(axis=1))
    factors = np.where(largest > 0, np.exp2(np.frexp(largest)[1] - _TOP), 1.0)
    scales = (scales / factors[:, None]).astype(np.float16)
    if format.shift == "minimum":
        shifts = (shifts / factors[:, None]).astype(np.float16)
    else:
        shifts = shifts.astype(np.int16)
    return scales, shifts, factors.astype(np.float32)


def _per_group(
    numbers: NDArray[Any], weight: QuantizedWeight, format: QuantizedFormat, groups: int
) -> NDArray[np.float64]:
    """Return numbers per group of the kernel's, [N groups], of those per group of the file's."""
    rows, columns = weight.shape
    stored = weight.format.group_columns or columns
    wide = np.broadcast_to(numbers.astype(np.float64), (rows, -(-columns // stored)))
    if format.group is None or format.group == stored:
        return wide
    each = stored // format.group if stored < columns else groups
    return np.repeat(wide, max(each, 1), axis=1)[:, :groups]


def _integers(table: tuple[float, ...]) -> tuple[tuple[int, ...], float] | None:
    """Return a table as whole numbers of int8 and what they are multiples of; None of others."""
    for factor in (1.0, 0.5):
        numbers = np.array(table) / factor
        if (numbers == np.rint(numbers)).all() and -128 <= numbers.min() <= numbers.max() < 128:
            return tuple(map(int, numbers)), factor
    return None


def _to(array: NDArray[Any], gemm: QuantizedGemm) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(gemm.device)


# ---- while loading -------------------------------------------------------------------------------


_AT_ONCE = 1 << 25  # weights whose float32 intermediates are there at a time
_SHRINKS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76)  # of int4's scales, that clip the largest


def quantize_weight(
    weights: Iterable[Tensor], format: QuantizedFormat, gemm: QuantizedGemm, *, gated: bool
) -> QuantizedLinear:
    """Return weights[N K] of floats below one another, rounded to a format without shifts."""
    parts = [
        round_weight(rows.float(), format)
        for weight in weights
        for rows in torch.split(weight, max(1, _AT_ONCE // weight.shape[1]))
    ]
    codes, scales, factors = (torch.cat(each) for each in zip(*parts, strict=True))
    return _pack(gemm, format, codes, scales, scales, factors, gated=gated)


def format_of_packing(packing: Packing) -> QuantizedFormat | None:
    """Return the format that weights are rounded to on the GPU while loading; None of none."""
    if packing.quantize not in ("int8", "int4"):
        return None
    return QuantizedFormat(8 if packing.quantize == "int8" else 4, packing.group)


def round_weight(weight: Tensor, format: QuantizedFormat) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [N K], float16 scales [N groups] and factors [N] of weight[N K].

    A group's largest number becomes the lowest code, of which there is one more than of highest;
    of 4 bits, the shrunk scale with the least squared error is taken.
    """
    rows, inner = weight.shape
    group, lowest = format.group or inner, 1 << (format.bits - 1)
    groups = -(-inner // group)
    cut = torch.nn.functional.pad(weight, (0, groups * group - inner)).view(rows, groups, group)
    largest = cut.gather(2, cut.abs().argmax(2, keepdim=True))
    scales = torch.where(largest == 0, 1.0, largest / -lowest)
    if format.bits == 4:
        scales = _best(cut, scales, lowest)
    scales, factors = _split(scales, format)
    used = scales.float() * factors[:, None, None]
    codes = (cut / used).round_().clamp_(-lowest, lowest - 1).add_(lowest).to(torch.uint8)
    flat = scales.view(rows, -1) if format.group is not None else scales.new_empty(rows, 0)
    return codes.view(rows, -1)[:, :inner].contiguous(), flat, factors


def _best(cut: Tensor, scales: Tensor, lowest: int) -> Tensor:
    """Return for each group the shrunk scale whose squared error is least."""
    best, least = scales, torch.full_like(scales, torch.inf)
    for shrink in _SHRINKS:
        tried = scales * shrink
        rounded = (cut / tried).round_().clamp_(-lowest, lowest - 1).mul_(tried)
        error = rounded.sub_(cut).square_().sum(2, keepdim=True)
        best = torch.where(error < least, tried, best)
        least = torch.minimum(error, least)
    return best


def _split(scales: Tensor, format: QuantizedFormat) -> tuple[Tensor, Tensor]:
    """Return scales[N G 1] as float16 times a power of two per row; of rows, as that factor."""
    if format.group is None:
        return torch.ones_like(scales, dtype=torch.float16), scales[:, 0, 0].contiguous()
    exponents = torch.frexp(scales.abs().amax((1, 2)))[1] - _TOP
    factors = torch.ldexp(torch.ones_like(scales[:, 0, 0]), exponents)
    return (scales / factors[:, None, None]).half(), factors


def _pack(
    gemm: QuantizedGemm,
    format: QuantizedFormat,
    codes: Tensor,
    scales: Tensor,
    shifts: Tensor,
    factors: Tensor,
    *,
    gated: bool,
) -> QuantizedLinear:
    packed = gemm.pack(format, codes, scales, shifts, factors, gated=gated)
    return QuantizedLinear(gemm, packed)
