"""Published quantised weights in the memory order of the CPU's GEMMs."""

import gguf
import numpy as np
import pytest
from gguf_model import random_blocks
from published import METHODS, Method
from spaninfer_engine.backends.cpu.elementwise import TABLE
from spaninfer_engine.backends.cpu.gemm import EXACT_PRODUCT, PRODUCT, STACK, TURNED_STACK
from spaninfer_engine.backends.cpu.ops import CpuOps, WeightForms
from spaninfer_engine.backends.cpu.quantised import (
    keep_codes_together,
    kept_bits,
    kernel_format,
    pack_quantised,
)
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_engine.load.quantised.checkpoint import with_quantised
from spaninfer_kernels_cpu import Format, Packed, linear, unpack
from spaninfer_op_reference import QuantizedWeight, dequantize_weight, stack_weights

ROWS, COLUMNS = 70, 512


def _of_gguf(name: str, seed: int = 0) -> QuantizedWeight:
    return BLOCK_TYPES[name].read(random_blocks(name, ROWS, COLUMNS, seed), COLUMNS)


class _Entry:
    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def read(self) -> np.ndarray:
        return self._array


def _of(method: Method, columns: int = COLUMNS) -> QuantizedWeight:
    made = method.write(64, columns, np.random.default_rng(0))
    entries = {f"m.{name}": _Entry(array) for name, array in made.tensors.items()}
    config = {"quantization_config": method.settings}
    weight = with_quantised("here", entries, config)["m.weight"].load()
    assert isinstance(weight, QuantizedWeight)
    return weight


def _packed_and_meant(weight: QuantizedWeight) -> tuple[Packed, np.ndarray]:
    format = kernel_format([weight.format])
    assert format is not None
    return pack_quantised([weight], format), dequantize_weight(weight)


GGUF = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
TABLES = ["IQ4_NL", "IQ4_XS", "MXFP4"]
FOLDERS = [
    *("GPTQ", "GPTQ symmetric", "GPTQ v2", "GPTQ per row", "GPTQ 2", "GPTQ 3", "GPTQ 8"),
    *("GPTQ 8 symmetric", "AWQ", "AWQ g64", "W4A16", "W4A16 asymmetric", "W8A16"),
    *("W4A16 per row", "3 bits", "6 bits", "W8A8", "W8A8 per tensor", "MXFP4"),
]


@pytest.mark.parametrize("name", GGUF + TABLES)
def test_weights_of_gguf_are_packed_exactly_and_in_the_bytes_of_the_file(name):
    packed, numbers = _packed_and_meant(_of_gguf(name))

    np.testing.assert_array_equal(unpack(packed), numbers)
    bits = packed.panels.nbytes * 8 / (packed.layout.panels * 64 * COLUMNS)
    assert bits == BLOCK_TYPES[name].format.stored_bits


@pytest.mark.parametrize("name", FOLDERS)
def test_weights_of_folders_are_packed_exactly(name):
    packed, numbers = _packed_and_meant(_of(METHODS[name]))

    np.testing.assert_array_equal(unpack(packed), numbers)


@pytest.mark.parametrize(("name", "bits"), [("NVFP4", 11), ("bitsandbytes int8", 23)])
def test_scales_that_are_products_are_rounded_once(name, bits):
    packed, numbers = _packed_and_meant(_of(METHODS[name]))

    np.testing.assert_allclose(unpack(packed), numbers, rtol=2.0**-bits, atol=2.0**-24)


@pytest.mark.parametrize("name", ["GPTQ reordered", "FP8 blocks", "FP8 per row", "NF4"])
def test_formats_without_a_gemm_are_expanded(name):
    assert kernel_format([_of(METHODS[name]).format]) is None


def _error(weight: QuantizedWeight, num_rows: int) -> float:
    """The largest |out - x W| / |x||W| of rows, against op-reference."""
    packed, numbers = _packed_and_meant(weight)
    rows = np.random.default_rng(1).standard_normal((num_rows, weight.shape[1]), np.float32)
    out = np.empty((num_rows, weight.shape[0]), np.float32)

    linear(rows, packed, out=out)

    exact, sizes = rows.astype(np.float64), np.abs(numbers).astype(np.float64)
    expected = exact @ numbers.astype(np.float64).T
    return (np.abs(out - expected) / (np.abs(exact) @ sizes.T)).max()


@pytest.mark.parametrize(
    "name",
    [
        name if name == "Q4_K" else pytest.param(name, marks=pytest.mark.sweep)
        for name in GGUF + TABLES
    ],
)
def test_gemms_with_weights_of_gguf_are_within_a_256th(name):
    weight = BLOCK_TYPES[name].read(random_blocks(name, ROWS, 2048, 0), 2048)

    for num_rows in (1, 4, 33):
        assert _error(weight, num_rows) <= 2.0**-8


@pytest.mark.parametrize("name", [*FOLDERS, "NVFP4", "bitsandbytes int8"])
@pytest.mark.sweep
def test_gemms_with_weights_of_folders_are_within_a_256th(name):
    for num_rows in (1, 4, 33):
        assert _error(_of(METHODS[name], 2048), num_rows) <= 2.0**-8


def test_weights_below_one_another_are_of_one_format():
    parts = [_of_gguf("Q4_0", seed) for seed in range(3)]
    format = kernel_format([part.format for part in parts])

    found = unpack(pack_quantised(parts, format))

    np.testing.assert_array_equal(found, np.concatenate(list(map(dequantize_weight, parts))))
    assert kernel_format([parts[0].format, _of_gguf("Q8_0").format]) is None


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (("Q4_K", "Q4_K", "Q4_K"), True),
        (("Q4_K", "Q4_K", "Q6_K"), False),
        (("Q4_0", "Q8_0", "Q5_0"), False),
        (("Q4_0", None), False),
        ((None, None), True),
    ],
)
def test_what_keeps_its_codes_alone_keeps_them_among_others(names, together):
    formats = [None if name is None else BLOCK_TYPES[name].format for name in names]

    assert keep_codes_together(formats) is together


@pytest.mark.parametrize("name", GGUF + TABLES)
def test_bits_of_gguf_are_those_of_the_file(name):
    format = BLOCK_TYPES[name].format

    assert kept_bits(format) == format.stored_bits


def test_experts_are_packed_one_behind_the_other():
    experts = [_of_gguf("Q4_0", seed) for seed in range(3)]

    packed = pack_quantised([stack_weights(experts)], kernel_format([experts[0].format]))

    for number, expert in enumerate(experts):
        np.testing.assert_array_equal(unpack(packed[number]), dequantize_weight(expert))


def test_the_backend_takes_codes_for_gemms_unless_another_format_was_requested():
    formats = [_of_gguf("Q4_0").format]

    assert CpuOps().quantized_packer(formats, PRODUCT) is not None
    assert CpuOps().quantized_packer(formats, STACK) is not None
    assert CpuOps().quantized_packer(formats, EXACT_PRODUCT) is None  # of a router
    assert CpuOps().quantized_packer(formats, TURNED_STACK) is None
    rounding = CpuOps(weights=WeightForms(Format("bfloat16")))
    assert rounding.quantized_packer(formats, PRODUCT) is None


def test_a_table_is_the_panels_of_the_head_unless_gemms_take_another_format():
    formats, requested = [_of_gguf("Q4_0").format], CpuOps(weights=WeightForms(Format("bfloat16")))

    assert CpuOps().coded_layout(TABLE) == PRODUCT
    assert requested.coded_layout(TABLE) == TABLE
    assert requested.quantized_packer(formats, TABLE) is not None


def test_gguf_dequantises_what_the_fixture_makes():
    blocks = random_blocks("Q4_K", 2, 256, 0)
    numbers = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_K)

    assert 0.05 < numbers.std() < 0.3
