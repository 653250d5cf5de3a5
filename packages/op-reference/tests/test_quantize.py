import numpy as np
import pytest
from spaninfer_op_reference import (
    CodeRange,
    dequantize_q8_0,
    pack_nibbles,
    quantize_cache,
    quantize_fp8,
    quantize_q8_0,
    quantize_rows,
    quantize_weight,
    to_e4m3,
    unpack_nibbles,
)

ASYMMETRIC = [CodeRange.INT8, CodeRange.UINT8, CodeRange.UINT4]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape, loc=0.3)


@pytest.mark.parametrize("codes", ASYMMETRIC)
@pytest.mark.parametrize("group", [None, 32])
def test_weights_come_back_within_half_a_step_and_their_extremes_exactly(codes, group):
    weight = numbers(6, 96)

    quantized = quantize_weight(weight, codes, group)

    grouped = weight.reshape(6, -1, group or 96)
    back = quantized.dequantize()
    assert (quantized.codes.min(), quantized.codes.max()) == codes.value
    assert quantized.scale.shape == quantized.zero.shape == (*grouped.shape[:2], 1)
    assert (np.abs(back - grouped) <= quantized.scale * 0.5000001).all()
    np.testing.assert_allclose(back.max(-1), grouped.max(-1), rtol=1e-12)
    np.testing.assert_allclose(back.min(-1), grouped.min(-1), rtol=1e-12)


def test_a_constant_weight_comes_back_exactly():
    back = quantize_weight(np.full((1, 8), 2.5), CodeRange.INT8).dequantize()

    assert (back == 2.5).all()


@pytest.mark.parametrize("codes", ASYMMETRIC)
def test_cached_vectors_come_back_within_a_step_and_zeros_exactly(codes):
    x = numbers(5, 2, 64)
    x[:, :, 7] = 0
    x[1] = np.abs(x[1]) + 1  # a range beside 0
    x[2] = 0

    quantized = quantize_cache(x, codes)

    back = quantized.dequantize()
    assert quantized.scale.shape == (5, 2, 1)
    assert (np.abs(back - x) <= quantized.scale).all()
    assert (back[x == 0] == 0).all()
    assert (quantized.zero == np.rint(quantized.zero)).all()
    assert quantized.zero.min() >= codes.value[0]
    assert quantized.zero.max() <= codes.value[1]


def test_activations_are_scaled_by_their_largest_size():
    codes, scale = quantize_rows(np.array([[-254.0, 127.0, 3.0], [0.0, 0.0, 0.0]]))

    assert codes.tolist() == [[-127, 64, 2], [0, 0, 0]]
    assert scale.tolist() == [[2.0], [1.0]]
    assert codes.dtype == np.int8


def test_fp8_codes_use_the_whole_range_and_keep_relative_precision():
    x = numbers(5, 2, 64) * 10.0 ** np.arange(-3, 2)[:, None, None]
    x[2, 0] = 0

    codes, scale = quantize_fp8(x)

    assert (codes.shape, scale.shape) == ((5, 2, 64), (5, 2, 1))
    assert scale[2, 0] == 1
    assert (np.abs(codes).max(-1) == np.where(x.any(-1), 448, 0)).all()
    normal = np.abs(codes) >= 2.0**-6
    assert (np.abs(codes * scale - x)[normal] <= np.abs(x)[normal] * 2.0**-4 * 1.0001).all()
    assert (codes == to_e4m3(codes)).all()


def test_q8_0_is_that_of_gguf():
    gguf = pytest.importorskip("gguf", reason="gguf is the second opinion")
    x = numbers(4, 128).astype(np.float32)
    x[2, 32:64] = 0
    x[3, :32] = np.linspace(-127, 127, 32).round()
    x[3, 1:7] = [0.5, 1.5, -0.5, -1.5, 2.5, 126.5]  # a scale of 1, and halves

    codes, scale = quantize_q8_0(x)
    half = scale.astype(np.float16)

    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(x, kind)
    ours = np.concatenate([half.view(np.uint8), codes.view(np.uint8)], -1)
    np.testing.assert_array_equal(ours.reshape(4, -1), packed)
    np.testing.assert_array_equal(
        dequantize_q8_0(codes, half), gguf.quants.dequantize(packed, kind)
    )


def test_q8_0_groups_of_llama2c_keep_their_scale_in_float32():
    x = numbers(4, 128).astype(np.float32)

    codes, scale = quantize_q8_0(x, group=64)

    back = dequantize_q8_0(codes, scale)
    assert (codes.shape, scale.shape, back.shape) == ((4, 2, 64), (4, 2, 1), (4, 128))
    assert scale.dtype == back.dtype == np.float32
    assert np.abs(codes).max() == 127
    assert (np.abs(back - x).reshape(4, 2, 64) <= scale * 0.500001).all()


def test_nibbles_lie_even_ones_low_and_come_back():
    codes = np.random.default_rng(1).integers(0, 16, (3, 8), dtype=np.uint8)

    packed = pack_nibbles(codes)

    assert pack_nibbles(np.array([1, 2], np.uint8)).tolist() == [0x21]
    assert packed.shape == (3, 4)
    np.testing.assert_array_equal(unpack_nibbles(packed), codes)
