"""The models that Inferflow and DashInfer ship definitions for: each has a spec here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spaninfer_engine.errors import NotBuilt, SpecError
from spaninfer_engine.spec import Decoder, find, load, parameter_count, resolve
from spaninfer_engine.spec.attention_nodes import Alibi, Attention, Rope

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())

INFERFLOW = {  # folder of its definition: (row of published.json, our spec)
    "aquila_chat2_34b": ("AquilaChat2-34B", "llama"),
    "baichuan2_7b_chat": ("Baichuan2-7B", "baichuan"),
    "baichuan2_13b_chat": ("Baichuan2-13B", "baichuan"),
    "bloomz_3b": ("bloomz-3b", "bloom"),
    "chatglm2_6b": ("ChatGLM2-6B", "chatglm"),
    "deepseek_moe_16b_base": ("DeepSeek-MoE-16B", "deepseek_moe"),
    "falcon_7b_instruct": ("Falcon-7B", "falcon"),
    "falcon_40b_instruct": ("Falcon-40B", "falcon"),
    "fusellm_7b": ("FuseLLM-7B", "llama"),
    "gemma_2b_it": ("gemma-2b", "gemma"),
    "internlm_chat_20b": ("InternLM-20B", "internlm"),
    "llama2.c 15m": ("stories15M", "llama"),
    "llama2.c 110m": ("stories110M", "llama"),
    "llama2_7b": ("Llama-2-7B", "llama"),
    "llama2_13b_chat_hf": ("Llama-2-13B", "llama"),
    "minicpm_2b_dpo_bf16": ("MiniCPM-2B", "minicpm"),
    "mistral_7b_instruct_v0.2": ("Mistral-7B", "mistral"),
    "mixtral_8x7b_instruct_v0.1": ("Mixtral-8x7B", "mixtral"),
    "open_llama_3b": ("OpenLLaMA-3B", "llama"),
    "opt_350m": ("opt-350m", "opt"),
    "opt_13b": ("opt-13b", "opt"),
    "opt_iml_max_30b": ("opt-iml-max-30b", "opt"),
    "orion_14b_chat": ("Orion-14B", "orion"),
    "phi_2": ("phi-2", "phi"),
    "qwen1.5_0.5b_chat": ("Qwen1.5-0.5B", "qwen2"),
    "qwen1.5_7b_chat": ("Qwen1.5-7B", "qwen2"),
    "xverse_13b_chat": ("XVERSE-13B", "llama"),
    "yi_6b_200k": ("Yi-6B", "llama"),
    "yi_34b_chat": ("Yi-34B", "llama"),
}
DASHINFER = {
    "qwen_v10": ("Qwen-7B", "qwen1"),
    "qwen_v15": ("Qwen1.5-7B", "qwen2"),
    "qwen_v20": ("Qwen2.5-72B", "qwen2"),
    "qwen_v30": ("Qwen3-8B", "qwen3"),
    "qwen_v20_MOE": ("Qwen1.5-MoE-A2.7B", "qwen2_moe"),
    "llama_v2": ("Llama-2-70B", "llama"),
    "llama_v3": ("Llama-3.1-8B", "llama"),
    "chatglm_v2": ("ChatGLM2-6B", "chatglm"),
    "chatglm_v3": ("ChatGLM3-6B", "chatglm"),
    "chatglm_v4": ("GLM-4-9B", "chatglm"),
    "baichuan_v1": ("Baichuan-7B", "baichuan"),
    "baichuan_v2": ("Baichuan2-13B", "baichuan"),
}
ENCODERS = {"bert_base_multilingual_cased": "BertForMaskedLM"}
PAIRS = {"facebook_m2m100_418m": "M2M100ForConditionalGeneration"}
WITH_TOWERS = {
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
}


@pytest.mark.parametrize(("row", "spec"), [*INFERFLOW.values(), *DASHINFER.values()])
def test_a_predefined_model_has_its_spec(row: str, spec: str) -> None:
    config = PUBLISHED[row]["config"]

    found = find(config)

    assert found == load(spec)
    assert resolve(found, config).architecture == spec


def test_multilingual_bert_has_as_many_numbers_as_its_publishers_say_without_the_pooler() -> None:
    config = {
        "architectures": [ENCODERS["bert_base_multilingual_cased"]], "vocab_size": 119_547,
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 512, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    }  # fmt: skip

    encoder = resolve(find(config), config)

    assert parameter_count(encoder) == 177_853_440 - 768 * 768 - 768


@pytest.mark.parametrize("architecture", PAIRS.values())
def test_a_predefined_model_of_another_kind_is_known_and_refused(architecture: str) -> None:
    config = {"architectures": [architecture]}

    with pytest.raises(NotBuilt, match="served are decoders and encoders"):
        resolve(find(config), config)


@pytest.mark.parametrize(("spec", "architecture"), WITH_TOWERS.items())
def test_a_predefined_model_of_other_media_has_its_spec(spec: str, architecture: str) -> None:
    """What it computes of text: test_text_parts.py."""
    assert find({"architectures": [architecture]}) == load(spec)


def decoder(row: str) -> Decoder:
    config = PUBLISHED[row]["config"]
    return resolve(find(config), config)


def attention(row: str) -> Attention:
    found = decoder(row).layers[0].attention
    assert isinstance(found, Attention)
    return found


def rope(row: str) -> Rope:
    found = attention(row).positions
    assert isinstance(found, Rope)
    return found


def test_baichuan_is_told_apart_by_width_and_vocabulary() -> None:
    rows = ["Baichuan-7B", "Baichuan2-7B", "Baichuan-13B", "Baichuan2-13B"]

    assert [type(attention(row).positions) for row in rows] == [Rope, Rope, Alibi, Alibi]
    assert [decoder(row).head.normalise for row in rows] == [False, True, False, True]


def test_qwen1_scales_queries_and_frequencies_behind_its_training_length() -> None:
    frequencies = rope("Qwen-7B").frequencies

    assert attention("Qwen-7B").logn_base == 2048
    assert (frequencies.kind, frequencies.original_len) == ("ntk_prompt", 2048)


def test_chatglm_stretches_its_base_and_rotates_half_of_a_head() -> None:
    found = rope("GLM-4-9B")

    assert (found.style, found.frequencies.dim, found.frequencies.theta) == ("interleaved", 64, 5e6)


def test_minicpm_scales_embedding_residuals_and_logits() -> None:
    found = decoder("MiniCPM-2B")

    assert found.embedding.scale == 12
    assert found.layers[0].residual_scale == pytest.approx(1.4 / 40**0.5)
    assert found.head.scale == pytest.approx(256 / 2304)


def test_the_first_spelling_of_falcon_40b_is_the_same_model() -> None:
    assert decoder("Falcon-40B, first spelling") == decoder("Falcon-40B")


def test_the_first_chatglm_is_refused_for_its_positions() -> None:
    config = {"architectures": ["ChatGLMModel"], "position_encoding_2d": True}

    with pytest.raises(SpecError, match="position_encoding_2d"):
        resolve(find(config), config)
