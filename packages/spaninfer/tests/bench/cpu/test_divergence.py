"""Divergence of a trained model under a format."""

from importlib.util import find_spec

import gguf
import numpy as np
import pytest
import spaninfer_demo
from spaninfer.bench.cpu import divergence as measured
from spaninfer.bench.cpu.divergence import divergence, divergence_of, divergence_of_llama
from spaninfer.bench.cpu.formats import FORMATS, TORCH, settings_of
from spaninfer.bench.cpu.gguf_file import stored_name
from spaninfer.bench.cpu.llama import llama_library
from spaninfer_engine.load import open_checkpoint


def test_it_is_the_mean_of_what_the_definition_says_row_by_row():
    rng = np.random.default_rng(0)
    exact, other = rng.standard_normal((2, 5, 7)).astype(np.float32)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in np.float64((exact, other)))

    assert divergence(exact, other) == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-9)
    assert divergence(exact, exact + np.float32(3)) == pytest.approx(0, abs=1e-7)


@pytest.mark.usefixtures("short_texts")
def test_texts_token_by_token_have_the_logits_of_one_step_each():
    texts = measured.texts()
    assert len({text[8:] for text in texts}) == len(texts) == 3
    whole = list(measured.logits_of(texts, len(texts[0]), backend="cpu", dtype="float32"))
    single = list(measured.logits_of(texts, 1, backend="cpu", dtype="float32"))

    for text, all_at_once, one_by_one in zip(texts, whole, single, strict=True):
        assert all_at_once.shape == (len(text), 4224)
        np.testing.assert_allclose(one_by_one, all_at_once, atol=1e-4 * all_at_once.std())


def test_a_text_has_the_same_logits_whichever_texts_come_before_it(short_texts):
    texts = measured.texts()

    alone = list(measured.logits_of(texts[1:2], short_texts, backend="cpu", dtype="float32"))
    behind = list(measured.logits_of(texts, short_texts, backend="cpu", dtype="float32"))

    np.testing.assert_array_equal(alone[0], behind[1])


def test_fewer_bits_cost_more_and_bfloat16_hardly_anything(short_texts):
    lost = [divergence_of(settings_of(format)[0], short_texts) for format in FORMATS]

    assert 0 <= lost[0] < 1e-5 < lost[1] < 1e-3 < lost[2] < 0.1


def test_torch_rounds_what_lies_between_its_operators_too(short_texts):
    pytest.importorskip("torch")

    assert 1e-6 < divergence_of(TORCH, short_texts) < 1e-3


def test_the_file_has_the_weights_of_the_checkpoint_under_names_of_its_own(tmp_path):
    path = tmp_path / "demo.gguf"

    measured.write_decoder(path, "BF16")

    tensors = gguf.GGUFReader(path).tensors
    with open_checkpoint(spaninfer_demo.path()) as checkpoint:
        stored = {name for name in checkpoint.reader.names if ".language_model." in name}
        assert {measured.name_in_whole(stored_name(tensor.name)) for tensor in tensors} == stored
        for tensor in tensors:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            read = checkpoint.reader.read(measured.name_in_whole(stored_name(tensor.name)))
            np.testing.assert_array_equal(numbers, np.float32(read))


@pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("rows", [1, 16])
def test_llama_cpp_computes_the_same_model(rows):
    lost = divergence_of_llama(llama_library(), "BF16", rows, threads=1)

    assert lost < 1e-4
