"""GGUF's blocks against the gguf package, bit by bit."""

import gguf
import numpy as np
import pytest
from gguf import quants
from spaninfer_engine.load.gguf.blocks import BLOCK_TYPES
from spaninfer_op_reference import dequantize_weight

RNG = np.random.default_rng(0)
ROWS, BLOCKS = 24, 3


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_random_bytes_stand_for_the_numbers_of_the_gguf_package(name):
    blocks, kind = BLOCK_TYPES[name], gguf.GGMLQuantizationType[name]
    rows = RNG.integers(0, 256, (ROWS, BLOCKS * blocks.block_bytes)).astype(np.uint8)

    with np.errstate(all="ignore"):  # some scales are infinite, or no numbers
        expected = quants.dequantize(rows, kind)
        actual = dequantize_weight(blocks.read(rows, BLOCKS * blocks.length))

    assert np.isfinite(expected).mean() > 0.7
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_a_format_says_how_many_bits_a_weight_takes(name):
    blocks, kind = BLOCK_TYPES[name], gguf.GGMLQuantizationType[name]
    length, num_bytes = gguf.GGML_QUANT_SIZES[kind]

    assert (blocks.length, blocks.block_bytes) == (length, num_bytes)
    assert blocks.format.stored_bits == 8 * num_bytes / length


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K"])
def test_tensors_of_experts_are_read_alike(name):
    blocks, kind = BLOCK_TYPES[name], gguf.GGMLQuantizationType[name]
    rows = RNG.integers(0, 60, (4, 6, BLOCKS * blocks.block_bytes)).astype(np.uint8)

    actual = dequantize_weight(blocks.read(rows, BLOCKS * blocks.length))

    np.testing.assert_array_equal(actual, quants.dequantize(rows, kind))


@pytest.mark.parametrize("some", [slice(3, 9), np.array([5, 0, 5])], ids=["slice", "places"])
@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_some_rows_are_those_of_the_whole(name, some):
    blocks = BLOCK_TYPES[name]
    rows = RNG.integers(0, 60, (ROWS, BLOCKS * blocks.block_bytes)).astype(np.uint8)
    weight = blocks.read(rows, BLOCKS * blocks.length)

    cut = weight.rows(some)

    assert isinstance(cut.codes, np.ndarray)
    np.testing.assert_array_equal(dequantize_weight(cut), dequantize_weight(weight)[some])
