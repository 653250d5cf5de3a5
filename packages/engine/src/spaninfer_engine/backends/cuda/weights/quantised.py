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
from spaninfer_kernels_cuda.scaled_gemm import Codes
from spaninfer_op_reference import E2M1, QuantizedWeight, WeightFormat
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.quantised_gemm import QuantizedGemm, codes_of_x
from spaninfer_engine.backends.cuda.weights.code_words import unpack_codes
from spaninfer_engine.load.packed.packing import Packing
from spaninfer_engine.load.quantised.packed_codes import PackedCodes

_CHUNK, _BLOCK = quantized_gemm.CHUNK, quantized_gemm.BLOCK_ROWS
_GROUPS: tuple[Literal[16, 32, 64, 128], ...] = (16, 32, 64, 128)
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

    @property
    def inner(self) -> int:
        """See LinearWeight."""
        return self.packed.inner

    @property
    def x_codes(self) -> Codes | None:
        """See LinearWeight."""
        return codes_of_x(self.packed.format)

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
    if format.table == E2M1 and format.zero == "none" and format.group_columns in _GROUPS:
        return QuantizedFormat(4, format.group_columns, values="e2m1")
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
        put_codes(weight, format, part, upload)
    numbers = [numbers_of(weight, format, gemm.device) for weight in weights]
    scales, shifts, factors = (torch.cat(each) for each in zip(*numbers, strict=True))
    packed = gemm.pack(format, codes, scales, shifts, factors, gated=gated)
    return QuantizedLinear(gemm, packed)


def put_codes(
    weight: QuantizedWeight,
    format: QuantizedFormat,
    out: Tensor,
    upload: Callable[[NDArray[Any], Tensor], None],
) -> None:
    """Fill out[N K] of uint8 with codes without a sign; those of a table are its entries."""
    if weight.format.table is not None and format.values != "e2m1":
        found = _integers(weight.format.table)
        assert found is not None
        entries: NDArray[np.uint8] = (np.array(found[0]) + 128).astype(np.uint8)
        upload(entries[np.asarray(weight.codes)], out)
        return
    is_centred = weight.format.zero == "none" and format.values == "integer"
    offset = 1 << (format.bits - 1) if is_centred else 0
    if isinstance(weight.codes, PackedCodes):
        unpack_codes(weight.codes, out, offset, upload)
        return
    upload(np.ascontiguousarray(weight.codes).view(np.uint8), out)
    out += offset


def numbers_of(
    weight: QuantizedWeight, format: QuantizedFormat, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scales and shifts [N groups] of 16 bits, and factors float32 [N], on a device.

    They are computed in float64, where nothing but the last step rounds.
    """
    rows, columns = weight.shape
    groups = 1 if format.group is None else -(-columns // format.group)
    scales = _per_group(_scaled(weight.scales, weight.outer, device), weight, format, groups)
    if weight.format.table is not None and format.values == "integer":
        found = _integers(weight.format.table)
        assert found is not None
        scales = scales * found[1]
    if format.group is None:
        none = scales.new_empty((rows, 0))
        return none, none, scales[:, 0].float()
    shifts = scales.new_zeros((rows, groups))
    if weight.format.zero == "minimum":
        assert weight.minimums is not None
        minimums = _scaled(weight.minimums, weight.outer_minimums, device)
        shifts = _per_group(minimums, weight, format, groups)
    elif weight.zeros is not None:
        shifts = _per_group(_scaled(weight.zeros, None, device), weight, format, groups)
        if format.shift == "minimum":
            shifts = shifts * scales
    largest = scales.abs().amax(1)
    if format.shift == "minimum":
        largest = torch.maximum(largest, shifts.abs().amax(1))
    powers = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - _TOP)
    factors = torch.where(largest > 0, powers, 1.0)
    scales = (scales / factors[:, None]).half()
    if format.shift == "minimum":
        return scales, (shifts / factors[:, None]).half(), factors.float()
    return scales, shifts.to(torch.int16), factors.float()


def _scaled(inner: NDArray[Any], outer: NDArray[Any] | None, device: torch.device) -> Tensor:
    """Return float64 [N G], or [1 G]: numbers of groups times those of the groups that hold them.

    `op_reference.group_scales` is the same on the host.
    """
    numbers = torch.from_numpy(np.array(inner, order="C")).to(device).double()
    if outer is None:
        return numbers
    above = torch.from_numpy(np.array(outer, order="C")).to(device).double()
    each = -(-numbers.shape[1] // above.shape[1])
    return numbers * above.repeat_interleave(each, 1)[:, : numbers.shape[1]]


def _per_group(
    numbers: Tensor, weight: QuantizedWeight, format: QuantizedFormat, groups: int
) -> Tensor:
    """Return numbers [N groups], per group of the kernel's, of those per group of the file's."""
    rows, columns = weight.shape
    stored, together = weight.format.group_columns or columns, weight.format.group_rows
    if together is not None and together > 1:
        numbers = numbers.repeat_interleave(together, 0)[:rows]
    wide = numbers.expand(rows, -(-columns // stored))
    if format.group is None or format.group == stored:
        return wide
    each = stored // format.group if stored < columns else groups
    return wide.repeat_interleave(max(each, 1), 1)[:, :groups]


def _integers(table: tuple[float, ...]) -> tuple[tuple[int, ...], float] | None:
    """Return a table as whole numbers of int8 and what they are multiples of; None of others."""
    for factor in (1.0, 0.5):
        numbers = np.array(table) / factor
        if (numbers == np.rint(numbers)).all() and -128 <= numbers.min() <= numbers.max() < 128:
            return tuple(map(int, numbers)), factor
    return None


# ---- while loading -------------------------------------------------------------------------------


_LARGEST_E4M3 = 448.0
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
    packed = gemm.pack(format, codes, scales, scales, factors, gated=gated)
    gemm.expect(packed)
    return QuantizedLinear(gemm, packed)


def format_of_packing(packing: Packing) -> QuantizedFormat | None:
    """Return the format that weights are rounded to on the GPU while loading; None of none."""
    if packing.quantize == "w4afp8":
        return QuantizedFormat(4, packing.group, activations="e4m3")
    if packing.quantize not in ("int8", "int4"):
        return None
    return QuantizedFormat(8 if packing.quantize == "int8" else 4, packing.group)


def round_weight(weight: Tensor, format: QuantizedFormat) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [N K], float16 scales [N groups] and factors [N] of weight[N K].

    A group's largest number becomes the lowest code, of which there is one more than of highest;
    of 4 bits, the shrunk scale with the least squared error is taken. That of a row of e4m3 becomes
    the largest of these.
    """
    rows, inner = weight.shape
    if format.values == "e4m3":
        assert format.group is None, "rows of e4m3"
        factors = weight.abs().amax(1).div_(_LARGEST_E4M3)
        factors = torch.where(factors == 0, 1.0, factors)
        codes = (weight / factors[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
        return codes, weight.new_empty(rows, 0, dtype=torch.float16), factors
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
