"""Reports at start about published quantised weights."""

import logging
from dataclasses import replace

import pytest
from gguf_model import write_gguf
from published import METHODS, Method, write_model
from spaninfer_engine import Engine
from spaninfer_engine.backends.registry import CUDA
from spaninfer_engine.config import EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.program.packer import PackedUse
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.startup import build as module
from spaninfer_engine.startup.build import build
from spaninfer_engine.startup.weight_formats import describe_formats
from spaninfer_op_reference import WeightFormat
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def _method_of(name: str) -> Method:
    return METHODS["W4A16" if "mlp" in name else "FP8 per channel"]


GROUPS = {
    "a": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4}},
    "b": {"targets": ["Linear"], "weights": {"num_bits": 8}},
}
SETTINGS = {"quant_method": "compressed-tensors", "config_groups": GROUPS}


@pytest.fixture
def folder(tmp_path):
    folder = write_model(tmp_path / "model", _method_of, settings=SETTINGS)
    vocabulary = {f"<{index}>": index for index in range(96)}
    Tokenizer(WordLevel(vocabulary, "<0>")).save(str(folder / "tokenizer.json"))
    return folder


def _decision(folder, **options):
    parts = build(EngineConfig(model=folder, memory=1 << 24, **options))
    return next(each for each in parts.resolved.decisions if each.what == "weight format")


def test_a_start_names_formats_and_what_they_take_as_codes_and_expanded(folder, caplog):
    with caplog.at_level(logging.INFO, "spaninfer_engine"):
        decision = _decision(folder, backend="cpu")

    mlp, rest = 2 * 3 * 256 * 384, 2 * (2 * 256 * 256 + 2 * 128 * 256) + 96 * 256
    in_file = mlp * (4 + 16 / 128) / 8 / 2**20
    assert decision.value == "FP8 per row, int4 g128"
    codes, expanded = decision.why.split("; ")
    assert codes.startswith("int4 g128 multiplied as codes by int8 activations: 0.3 MiB for 0.")
    assert f"for {in_file:.1f} in the file" in codes
    assert expanded.startswith("FP8 per row expanded while loading: ")
    held = float(expanded.partition("loading: ")[2].split()[0])  # bfloat16, whole panels of rows
    assert 2 * rest / 2**20 - 0.05 <= held <= 1.1 * 2 * rest / 2**20
    assert [record.message for record in caplog.records if "weight format" in record.message]


def test_formats_stand_beside_the_activations_that_they_are_multiplied_by():
    fp8 = WeightFormat("FP8 per row", "e4m3", 8, 1, None, "float32", 8, activations="e4m3")
    w8a8 = replace(fp8, name="W8A8", values="integer", activations="int8")
    int4 = WeightFormat("int4 g128", "integer", 4, 1, 128, "float16", 4.125)
    uses = [PackedUse(frozenset({each}), False, 1 << 20, 1 << 20) for each in (fp8, w8a8, int4)]
    uses += [PackedUse(frozenset({int4}), True, 4 << 20, 1 << 20)]

    (decision,) = describe_formats(uses, CUDA.code_activations)

    one = "1.0 MiB for 1.0 in the file"
    assert decision.value == "FP8 per row, W8A8, int4 g128"
    assert decision.why.split("; ") == [
        f"FP8 per row multiplied as codes by fp8 activations (of experts: 16 bits): {one}",
        f"W8A8 multiplied as codes by int8 activations (of experts: 16 bits): {one}",
        f"int4 g128 multiplied as codes by 16-bit activations: {one}",
        "int4 g128 expanded while loading: 4.0 MiB for 1.0 in the file",
    ]


def test_backends_without_kernels_expand_all_and_so_does_a_requested_format(folder):
    assert "as codes" not in _decision(folder, backend="reference").why
    assert "as codes" not in _decision(folder, backend="cpu", quantize="bfloat16").why


def test_projections_are_joined_only_where_none_loses_its_codes(tmp_path):
    """Q4_K_M: values in Q6_K beside queries and keys in Q4_K."""
    types = {"attn_v": "Q6_K", "token_embd": "Q6_K", "output": "Q6_K", "": "Q4_K"}
    file = write_gguf(tmp_path / "model.gguf", types)

    parts = build(EngineConfig(model=file, memory=1 << 24, backend="cpu"))

    decision = next(each for each in parts.resolved.decisions if each.what == "weight format")
    assert decision.why.startswith("Q4_K, Q6_K multiplied as codes")
    assert "expanded" not in decision.why  # nor is the embedding


def test_memory_is_asked_for_what_is_held(folder, monkeypatch):
    """A model that fits as codes alone is not refused for what it would take expanded."""
    asked = []

    def note(*_, stored):
        asked.append(stored.formats)

    monkeypatch.setattr(module, "refuse_oversized", note)
    _decision(folder, backend="cpu")

    assert {str(format) for format in asked[0].values()} == {"FP8 per row", "int4 g128"}


def test_an_engine_answers_from_codes_and_a_converted_folder_answers_the_same(folder, tmp_path):
    from spaninfer_engine.tools.conversion import convert

    converted = convert(folder, tmp_path / "converted")
    answers = []
    for path in (folder, converted):
        with Engine(path, backend="cpu", memory=1 << 24) as engine:
            params = SamplingParams(max_tokens=8, temperature=0)
            (answer,) = engine.generate([[1, 2, 3]], params)
        answers.append(answer.token_ids)

    assert answers[0] == answers[1]


def test_an_unknown_method_is_refused_for_random_weights_too(tmp_path):
    folder = write_model(tmp_path / "m", lambda _: None, settings={"quant_method": "aqlm"})

    for weights in ("checkpoint", "dummy"):
        with pytest.raises(ConfigError, match="quant_method 'aqlm'; supported are gptq, awq"):
            build(EngineConfig(model=folder, weights=weights))
