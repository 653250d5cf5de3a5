"""The GGUF file for llama.cpp: the same sizes and formats as ours."""

import gguf
import numpy as np
import pytest
from spaninfer.bench.cpu.gguf_file import matrices, write_gguf
from spaninfer.bench.shapes import SHAPES


def test_the_shape_has_the_parameters_of_the_published_model():
    sizes = [outputs * channels for _, (outputs, channels) in matrices(SHAPES["qwen2.5-0.5b"])]

    assert 493e6 < sum(sizes) < 494e6


@pytest.mark.parametrize(
    ("format", "row_bytes"), [("BF16", 128), ("Q8_0", 2 * 34), ("Q4_0", 2 * 18)]
)
def test_every_matrix_of_the_file_is_in_the_format_and_has_its_shape(
    tmp_path, tiny, format, row_bytes
):
    path = tmp_path / "model.gguf"

    write_gguf(path, tiny, format)

    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, (outputs, channels) in matrices(tiny):
        assert found[name].tensor_type.name == format
        assert tuple(found[name].shape) == (channels, outputs)
    embedding = found["token_embd.weight"]
    assert embedding.n_bytes == 300 * row_bytes
    numbers = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    assert np.std(numbers) == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize("format", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_types_of_two_levels_hold_random_numbers_of_a_matrix_size(tmp_path, tiny, format):
    path = tmp_path / "model.gguf"

    write_gguf(path, tiny | {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256}, format)

    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    embedding = tensors["token_embd.weight"]
    assert embedding.tensor_type.name == format
    numbers = gguf.quants.dequantize(embedding.data, embedding.tensor_type)
    assert 0.1 < np.std(numbers) * 16 < 10
