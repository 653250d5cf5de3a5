"""Published quantised weights in the order of the CPU's products."""

import gguf
import numpy as np
import pytest
from gguf_model import random_blocks
from published import METHODS, Method
from spaninfer_engine.backends.cpu.gemm import EXACT_PRODUCT, PRODUCT, STACK, TURNED_STACK
from spaninfer_engine.backends.cpu.ops import CpuOps
from spaninfer_engine.backends.cpu.quantised import (
    keep_codes_together,
    kernel_format,
    pack_quantised,
)
from spaninfer_engine.load.quantised.checkpoint import with_quantised
from spaninfer_engine.load.quantised.gguf_blocks import BLOCK_TYPES
from spaninfer_kernels_cpu import Format, unpack
from spaninfer_op_reference import QuantizedWeight, dequantize_weight, stack_weights

ROUNDING = 2.0**-8  # of scale and bias, to bfloat16
ROWS, COLUMNS = 70, 512


def _of_gguf(name: str, seed: int = 0) -> QuantizedWeight:
    return BLOCK_TYPES[name].read(random_blocks(name, ROWS, COLUMNS, seed), COLUMNS)


class _Entry:
    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def read(self) -> np.ndarray:
        return self._array


def _of(method: Method) -> QuantizedWeight:
    made = method.write(64, COLUMNS, np.random.default_rng(0))
    entries = {f"m.{name}": _Entry(array) for name, array in made.tensors.items()}
    config = {"quantization_config": method.settings}
    weight = with_quantised("here", entries, config)["m.weight"].load()
    assert isinstance(weight, QuantizedWeight)
    return weight


def _check(weight: QuantizedWeight, kind: str, group: int | None) -> None:
    format = kernel_format([weight.format])
    assert format == Format(kind, group)

    found = unpack(pack_quantised([weight], format))

    numbers = dequantize_weight(weight)
    most = np.abs(numbers).max()
    assert np.abs(found - numbers).max() <= ROUNDING * most


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("Q4_0", "int4"), ("Q4_1", "int4"), ("Q4_K", "int4"), ("Q5_0", "int8")),
        *(("Q5_1", "int8"), ("Q5_K", "int8"), ("Q8_0", "int8"), ("IQ4_NL", "int8")),
        *(("IQ4_XS", "int8"), ("MXFP4", "int8")),
    ],
)
def test_codes_of_gguf_stand_for_the_same_but_for_rounded_scales(name, kind):
    _check(_of_gguf(name), kind, 32)


@pytest.mark.parametrize(
    ("name", "kind", "group"),
    [
        *(("GPTQ", "int4", 128), ("GPTQ 3", "int4", 128), ("GPTQ per row", "int4", None)),
        *(("GPTQ 8 symmetric", "int8", 32), ("AWQ g64", "int4", 64), ("W4A16", "int4", 128)),
        *(("6 bits", "int8", 128), ("W8A8", "int8", None), ("W8A8 per tensor", "int8", None)),
        ("bitsandbytes int8", "int8", None),
    ],
)
def test_codes_of_folders_stand_for_the_same_but_for_rounded_scales(name, kind, group):
    _check(_of(METHODS[name]), kind, group)


@pytest.mark.parametrize(
    "name", ["GPTQ 8", "GPTQ reordered", "FP8 blocks", "FP8 per row", "NF4", "NVFP4"]
)
def test_formats_that_products_would_change_have_none(name):
    assert kernel_format([_of(METHODS[name]).format]) is None


def test_scales_of_16_weights_have_no_product():
    assert kernel_format([_of_gguf("Q6_K").format]) is None


def test_weights_below_one_another_share_the_wider_codes():
    parts = [_of_gguf(name, seed) for seed, name in enumerate(["Q4_0", "Q8_0", "IQ4_NL"])]
    formats = [part.format for part in parts]

    format = kernel_format(formats)
    assert format == Format("int8", 32)

    found = unpack(pack_quantised(parts, format))
    expected = np.concatenate([dequantize_weight(part) for part in parts])
    assert np.abs(found - expected).max() <= ROUNDING * np.abs(expected).max()
    assert kernel_format([*formats, _of(METHODS["AWQ"]).format]) is None  # another group


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (("Q4_K", "Q4_K", "Q4_K"), True),
        (("Q4_0", "Q8_0", "Q5_0"), True),  # in int8
        (("Q4_K", "Q4_K", "Q6_K"), False),
        (("Q6_K", "Q6_K", None), True),  # all are expanded
        (("Q4_0", None), False),
        ((None, None), True),
    ],
)
def test_what_keeps_its_codes_alone_keeps_them_among_others(names, together):
    formats = [None if name is None else BLOCK_TYPES[name].format for name in names]

    assert keep_codes_together(formats) is together


def test_experts_are_packed_one_behind_the_other():
    experts = [_of_gguf("Q4_0", seed) for seed in range(3)]

    packed = pack_quantised([stack_weights(experts)], Format("int4", 32))

    for number, expert in enumerate(experts):
        np.testing.assert_allclose(
            unpack(packed[number]), dequantize_weight(expert), rtol=ROUNDING, atol=1e-9
        )


def test_the_backend_takes_codes_for_products_unless_another_format_was_requested():
    formats = [_of_gguf("Q4_0").format]

    assert CpuOps().quantized_packer(formats, PRODUCT) is not None
    assert CpuOps().quantized_packer(formats, STACK) is not None
    assert CpuOps().quantized_packer(formats, EXACT_PRODUCT) is None  # of a router
    assert CpuOps().quantized_packer(formats, TURNED_STACK) is None
    assert CpuOps(format=Format("bfloat16")).quantized_packer(formats, PRODUCT) is None


def test_gguf_dequantises_what_the_fixture_makes():
    blocks = random_blocks("Q4_K", 2, 256, 0)
    numbers = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q4_K)

    assert 0.05 < numbers.std() < 0.3
