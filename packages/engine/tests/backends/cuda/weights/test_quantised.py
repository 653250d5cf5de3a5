"""Quantised weights in the formats of the GPU's GEMMs, and products with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gguf_model import random_blocks
from numpy.typing import NDArray
from published import METHODS, Method
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_engine.load.packed.packing import packing_of
from spaninfer_engine.load.quantised.checkpoint import with_quantised
from spaninfer_op_reference import (
    E2M1,
    QuantizedWeight,
    dequantize_weight,
    gated,
    grid_format,
    quantize_fp8,
    quantize_to_grid,
    quantize_to_table,
    table_format,
)

torch = pytest.importorskip("torch")

from host_packing import pack_on_host  # noqa: E402
from spaninfer_engine.backends.cuda.weights.linear import GATED_GEMM, GEMM  # noqa: E402
from spaninfer_engine.backends.cuda.weights.quantised import (  # noqa: E402
    format_of,
    format_of_packing,
    kept_bits,
    kernel_format,
    numbers_of,
    put_codes,
    round_weight,
)
from spaninfer_engine.backends.torch.upload import fill  # noqa: E402
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat  # noqa: E402

Array = NDArray[Any]
ROWS, COLUMNS = 70, 512

GGUF = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
TABLES = ["IQ4_NL", "IQ4_XS", "MXFP4"]
FOLDERS = [
    *("GPTQ", "GPTQ symmetric", "GPTQ v2", "GPTQ per row", "GPTQ 2", "GPTQ 3", "GPTQ 8"),
    *("GPTQ 8 symmetric", "AWQ", "AWQ g64", "W4A16", "W4A16 asymmetric", "W8A16"),
    *("W4A16 per row", "3 bits", "6 bits", "W8A8", "W8A8 per tensor", "NVFP4"),
    "bitsandbytes int8",
]
GRIDS = [(name, group) for name in ("int6", "int5", "int3.5", "int3", "int2") for group in
         (32, 64, None)]  # fmt: skip
GROUPS = (32, 64, 128, None)
EXPANDED = ["GPTQ reordered", "FP8 blocks", "FP8 per row", "NF4"]


class _Entry:
    def __init__(self, array: Array) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def read(self) -> Array:
        return self._array


def _published(method: Method) -> QuantizedWeight:
    made = method.write(64, COLUMNS, np.random.default_rng(0))
    entries = {f"m.{name}": _Entry(array) for name, array in made.tensors.items()}
    config = {"quantization_config": method.settings}
    weight = with_quantised("here", entries, config)["m.weight"].load()  # type: ignore[arg-type]
    assert isinstance(weight, QuantizedWeight)
    return weight


def _weight(name: str) -> QuantizedWeight:
    if name in METHODS and name != "MXFP4":
        return _published(METHODS[name])
    return BLOCK_TYPES[name].read(random_blocks(name, ROWS, COLUMNS, 0), COLUMNS)


def _grid(name: str, group: int | None) -> QuantizedWeight:
    weight = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    return quantize_to_grid(weight * np.float32(0.02), grid_format(name, group))


def _meant(
    format: QuantizedFormat, codes: Array, scales: Array, shifts: Array, factors: Array
) -> Array:
    """Return the numbers that codes stand for, by the definition of QuantizedFormat."""
    numbers = np.array(E2M1)[codes] if format.values == "e2m1" else codes.astype(np.float64)
    group = format.group or codes.shape[1]

    def spread(array: Array) -> Array:
        return np.repeat(array.astype(np.float64), group, 1)[:, : codes.shape[1]]

    if format.shift == "none" and format.values == "integer":
        numbers -= 1 << (format.bits - 1)
    if format.shift == "zero":
        numbers -= spread(shifts)
    if format.group is not None:
        numbers *= spread(scales)
    if format.shift == "minimum":
        numbers -= spread(shifts)
    return numbers * factors.astype(np.float64)[:, None]


@pytest.mark.parametrize("name", GGUF + TABLES + FOLDERS)
def test_published_codes_stand_for_the_same_numbers_within_a_rounding_of_scales(name: str) -> None:
    _check_held(_weight(name))


@pytest.mark.parametrize(("name", "group"), GRIDS)
def test_grids_that_are_made_on_the_host_are_held_as_published_codes(
    name: str, group: int | None
) -> None:
    weight = _grid(name, group)
    kept = kernel_format([weight.format])

    assert kept is not None
    assert kept.bits == (4 if weight.format.bits <= 4 else 8)
    _check_held(weight)


@pytest.mark.parametrize("group", GROUPS)
def test_levels_of_a_table_that_are_made_on_the_host_are_held_as_numbers_of_8_bits(
    group: int | None,
) -> None:
    numbers = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    weight = quantize_to_table(numbers * np.float32(0.02), table_format("iq4_nl", group))
    kept = kernel_format([weight.format])

    assert kept is not None
    assert (kept.bits, kept.shift) == (8, "none")
    _check_held(weight)


def _put(weight: QuantizedWeight, format: QuantizedFormat) -> Array:
    out = torch.empty(weight.shape, dtype=torch.uint8)
    put_codes(weight, format, out, fill)
    return out.numpy()


def _numbers(weight: QuantizedWeight, format: QuantizedFormat) -> Iterator[Array]:
    return (each.numpy() for each in numbers_of(weight, format, torch.device("cpu")))


def _check_held(weight: QuantizedWeight) -> None:
    """Compare what codes, scales and shifts stand for on the GPU with the definition."""
    format = format_of(weight.format)
    assert format is not None

    unsigned = _put(weight, format)
    found = _meant(format, unsigned, *_numbers(weight, format))

    exact = dequantize_weight(weight).astype(np.float64)
    size = np.abs(exact)
    if format.shift == "minimum":  # scaled codes and minimums cancel; each is rounded
        size = 2 * size.max(1, keepdims=True)
    assert (unsigned < 1 << format.bits).all()
    assert (np.abs(found - exact) <= 2.0**-11 * size).all()


def test_scales_of_16_bits_are_kept_to_the_bit() -> None:
    weight = _weight("GPTQ")
    format = format_of(weight.format)
    assert format is not None

    scales, zeros, factors = _numbers(weight, format)

    np.testing.assert_array_equal(scales * factors[:, None], weight.scales.astype(np.float32))
    np.testing.assert_array_equal(zeros, weight.zeros)


@pytest.mark.parametrize("name", EXPANDED)
def test_formats_that_no_gemm_has_are_expanded(name: str) -> None:
    assert format_of(_weight(name).format) is None
    assert kept_bits(_weight(name).format) is None


def test_weights_below_one_another_are_of_one_format() -> None:
    first, second = _weight("Q4_0").format, _weight("Q8_0").format

    assert kernel_format([first, first]) == QuantizedFormat(4, 32)
    assert kernel_format([first, second]) is None
    assert kept_bits(first) == 4.5


@pytest.mark.parametrize("group", [32, 64, 128, "row"])
@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.01), ("int4", 0.13)])
def test_rounding_while_loading_is_off_by_what_the_bits_say(
    quantize: Any, most: float, group: Any
) -> None:
    format = format_of_packing(packing_of(quantize, group))
    assert format is not None
    weight = np.random.default_rng(0).standard_normal((6, 200), np.float32) * 0.01
    weight[1], weight[2, 3] = 0, 100.0  # a row of zeros, and an outlier

    codes, scales, factors = round_weight(torch.from_numpy(weight), format)

    shown = [each.numpy() for each in (codes, scales, scales, factors)]
    error = _meant(format, *shown) - weight  # type: ignore[arg-type]
    usual = [0, 3, 4, 5]
    assert np.sqrt((error[usual] ** 2).mean() / (weight[usual] ** 2).mean()) < most
    assert (error[1] == 0).all()
    assert abs(error[2, 3]) < 100 * most


@pytest.mark.parametrize("group", [32, 64, 128])
def test_codes_for_activations_in_e4m3_are_those_of_int4(group: Any) -> None:
    formats = [format_of_packing(packing_of(each, group)) for each in ("int4", "w4afp8")]
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 208), np.float32))

    plain, coded = (round_weight(weight, format) for format in formats if format is not None)

    assert formats == [
        QuantizedFormat(4, group),
        QuantizedFormat(4, group, activations="e4m3"),
    ]
    assert all(torch.equal(a, b) for a, b in zip(plain, coded, strict=True))
    assert format_of_packing(packing_of("w4afp8")) == QuantizedFormat(4, 128, activations="e4m3")


def test_of_four_bits_scales_shrink_where_the_error_is_less_for_it() -> None:
    format = QuantizedFormat(4, 128)
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 128), np.float32))

    codes, scales, factors = round_weight(weight, format)

    largest = weight.abs().amax(1)
    assert (scales[:, 0].abs().float() * factors * 8 < largest * 0.99).sum() > 32
    assert ((codes == 0) | (codes == 15)).any(1).all()


def test_rows_that_kernels_of_e4m3_cannot_read_stay_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from spaninfer_engine.backends.cuda.ops import CudaOps
    from spaninfer_engine.backends.cuda.weights.packing import WeightForms

    pack_on_host(monkeypatch)
    format = QuantizedFormat(4, 128, activations="e4m3")
    ops = CudaOps("bfloat16", "cpu", weights=WeightForms(format))
    weight = np.random.default_rng(0).standard_normal((64, 264)).astype(np.float32)

    kept, packed = ops.pack([weight], GEMM), ops.pack([weight[:, :256]], GEMM)

    assert torch.equal(kept, torch.from_numpy(weight).bfloat16())
    assert packed.packed.format == format


# ---- on a GPU ------------------------------------------------------------------------------------


def _ops(dtype: str, quantize: QuantizedFormat | None = None) -> Any:
    from spaninfer_engine.backends.cuda.ops import CudaOps
    from spaninfer_engine.backends.cuda.weights.packing import WeightForms

    return CudaOps(dtype, weights=WeightForms(quantize))  # type: ignore[arg-type]


def _check(found: Any, x: Any, numbers: Array, bias: Any, added: Array | float = 0.0) -> None:
    """Assert that a product is within a 256th of the sum of its terms' sizes."""
    wide = x.double().cpu().numpy()
    exact = wide @ numbers.T + bias.double().cpu().numpy() + added
    sizes = np.abs(wide) @ np.abs(numbers).T + np.abs(bias.double().cpu().numpy()) + np.abs(added)
    assert (np.abs(found.double().cpu().numpy() - exact) <= 2.0**-8 * sizes).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["GPTQ", "AWQ", "W4A16", "W8A8", "Q4_K", "Q6_K", "MXFP4"])
def test_gemms_are_those_of_the_numbers_that_codes_stand_for(name: str, dtype: str) -> None:
    ops, weight = _ops(dtype), _weight(name)
    pack = ops.quantized_packer([weight.format], GEMM)
    packed, numbers = pack([weight]), dequantize_weight(weight).astype(np.float64)
    bias = torch.randn(len(numbers), device="cuda").to(ops.dtype)

    for rows in (1, 9, 40, 70, 300, 3000):
        x = torch.randn(rows, COLUMNS, device="cuda").to(ops.dtype)
        residual = torch.randn(rows, len(numbers), device="cuda").to(ops.dtype)
        before = residual.double().cpu().numpy()

        _check(ops.linear(x, weight=packed, bias=bias), x, numbers, bias)
        _check(packed.multiply(x, bias, residual=residual), x, numbers, bias, before)


@pytest.mark.gpu
@pytest.mark.parametrize("start", [0, 64, 130])
def test_the_last_rows_are_a_weight_of_their_own(start: int) -> None:
    ops = _ops("bfloat16")
    weights = [_weight("Q4_0")] * 3
    packed = ops.quantized_packer([each.format for each in weights], GEMM)(weights)
    numbers = np.concatenate(list(map(dequantize_weight, weights))).astype(np.float64)[start:]
    x = torch.randn(5, COLUMNS, device="cuda").to(ops.dtype)
    bias = torch.randn(len(numbers), device="cuda").to(ops.dtype)

    _check(ops.linear(x, weight=packed[start:], bias=bias), x, numbers, bias)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128, None])
def test_gates_of_weights_that_were_rounded_while_loading(bits: Any, group: int | None) -> None:
    format, inner = QuantizedFormat(bits, group), 200
    ops, draw = _ops("bfloat16", format), np.random.default_rng(0)
    parts = [draw.standard_normal((inner, COLUMNS)).astype(np.float32) for _ in range(2)]

    packed = ops.pack(parts, GATED_GEMM)

    kept = torch.from_numpy(np.concatenate(parts)).bfloat16().float()
    codes, scales, factors = round_weight(kept.cuda(), format)
    shown = [each.cpu().numpy() for each in (codes, scales, scales, factors)]
    numbers = torch.from_numpy(_meant(format, *shown)).cuda()  # type: ignore[arg-type]
    for rows in (1, 20, 100, 3000):
        x = torch.randn(rows, COLUMNS, device="cuda").to(ops.dtype)
        gate, up = (x.double() @ numbers.T).chunk(2, 1)
        exact = torch.nn.functional.silu(gate) * up
        found = ops.gated_linear(x, act="silu", weight=packed, bias=None)
        # Where gate and up are large, each is off by a 256th of the sum of its terms.
        size = x.double().abs() @ numbers.abs().T
        sizes = (size[:, :inner] * up.abs() + size[:, inner:] * gate.abs()) * 1.2 + exact.abs()
        assert ((found.double() - exact).abs() <= 2.0**-8 * sizes).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_gemms_of_activations_in_e4m3_are_those_of_what_their_codes_stand_for(
    group: Any, dtype: str
) -> None:
    """Codes of x that tip by a rounding of its quotients, and sums of 14 bits, are seen by no 256th
    of a result's size; x that was not quantised by 2.6 %.
    """
    format, inner, outputs = QuantizedFormat(4, group, activations="e4m3"), 528, 208
    ops, draw = _ops(dtype, format), np.random.default_rng(0)
    weight = draw.standard_normal((outputs, inner)).astype(np.float32)
    kept = torch.from_numpy(weight).to(ops.dtype).float()
    codes, scales, factors = round_weight(kept.cuda(), format)
    shown = [each.cpu().numpy() for each in (codes, scales, scales, factors)]
    numbers = _meant(format, *shown)  # type: ignore[arg-type]
    plain, gates = ops.pack([weight], GEMM), ops.pack([weight], GATED_GEMM)
    bias = torch.randn(outputs, device="cuda").to(ops.dtype)

    for rows in (1, 8, 64, 256, 1100):
        x = torch.randn(rows, inner, device="cuda").to(ops.dtype)
        residual = torch.randn(rows, outputs, device="cuda").to(ops.dtype)
        before = residual.double().cpu().numpy()
        coded = quantize_fp8(x.float().cpu().numpy())
        product = np.multiply(*coded, dtype=np.float64) @ numbers.T
        shifted = product + bias.double().cpu().numpy()

        _check_size(ops.linear(x, weight=plain, bias=bias), shifted)
        _check_size(plain.multiply(x, bias, residual=residual), shifted + before)
        _check_size(ops.linear(x, weight=plain[70:]), product[:, 70:])
        exact = gated(*np.split(product, 2, 1), "silu")
        _check_size(ops.gated_linear(x, act="silu", weight=gates, bias=None), exact)


def _check_size(found: Any, exact: Array) -> None:
    """Assert that the error of a product is at most a 256th of its size."""
    error = found.double().cpu().numpy() - exact
    assert np.sqrt((error**2).mean()) <= 2.0**-8 * np.sqrt((exact**2).mean())
