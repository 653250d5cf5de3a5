"""Models that also see or hear, loaded for text: logits as transformers' whole model gives them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Family
from media_models import turn_experts
from oracle import Oracle, deviation, prompt, tolerance_of
from spaninfer_engine.errors import SpecError
from spaninfer_engine.spec import Decoder, TowerNotUsed, check, find, resolve
from stepping import Model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _text(name: str, **more: Any) -> dict[str, Any]:
    return {**FAMILIES[name].arguments, **more}


def _mrope(*sections: int, fraction: float = 1.0) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections),
            "partial_rotary_factor": fraction}  # fmt: skip


_SIGLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
           "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
_INTERNVIT = {**_SIGLIP, "model_type": "internvl_vision", "attention_bias": True}
_QWEN_VISION = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14}
_QWEN25_VISION = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2,
                  "intermediate_size": 48, "fullatt_block_indexes": [0]}  # fmt: skip
_QWEN3_VISION = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2,
                 "intermediate_size": 48, "num_position_embeddings": 16,
                 "deepstack_visual_indexes": [0]}  # fmt: skip
_QWEN35_VISION = {key: each for key, each in _QWEN3_VISION.items() if "deep" not in key}
_AUDIO = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2,
          "encoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 20}  # fmt: skip


def _whole(name: str, text: Mapping[str, Any], tower: Mapping[str, Any], **more: Any) -> Family:
    key = "audio_config" if "Audio" in name else "vision_config"
    arguments = {"text_config": text, key: tower, **more}
    return Family(f"{name}ForConditionalGeneration", f"{name}Config", arguments)


_IDS = {"image_token_id": 190, "video_token_id": 191,
        "vision_start_token_id": 192, "vision_end_token_id": 193}  # fmt: skip
WHOLE = {
    "gemma3": _whole("Gemma3", _text("gemma3"), {**_SIGLIP, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4, image_token_index=190, boi_token_index=191, eoi_token_index=192),
    "mistral3": _whole("Mistral3", _text("mistral", head_dim=16, model_type="mistral"),
        {**_SIGLIP, "model_type": "pixtral"}, image_token_index=190),
    "idefics3": _whole("Idefics3", _text("llama", model_type="llama"),
        {**_SIGLIP, "model_type": "idefics3_vision"}, image_token_id=190),
    "smolvlm": _whole("SmolVLM", _text("llama", model_type="llama"),
        {**_SIGLIP, "model_type": "smolvlm_vision"}, image_token_id=190),
    "internvl": _whole("InternVL", _text("qwen2", model_type="qwen2"), _INTERNVIT,
        image_token_id=190),
    "internvl_qwen3": _whole("InternVL", _text("qwen3", model_type="qwen3"), _INTERNVIT,
        image_token_id=190),
    "internvl_qwen3_moe": _whole("InternVL", _text("qwen3_moe", model_type="qwen3_moe"),
        _INTERNVIT, image_token_id=190),
    "llava": _whole("Llava", _text("llama", model_type="llama"),
        {**_SIGLIP, "model_type": "clip_vision_model", "num_hidden_layers": 2},
        image_token_index=190),
    "llava_mistral": _whole("Llava", _text("mistral", model_type="mistral"),
        {**_SIGLIP, "model_type": "clip_vision_model", "num_hidden_layers": 2},
        image_token_index=190),
    "llava_next": _whole("LlavaNext", _text("llama", model_type="llama"),
        {**_SIGLIP, "model_type": "clip_vision_model", "num_hidden_layers": 2},
        image_token_index=190),
    "llava_next_mistral": _whole("LlavaNext", _text("mistral", model_type="mistral"),
        {**_SIGLIP, "model_type": "clip_vision_model", "num_hidden_layers": 2},
        image_token_index=190),
    "aya_vision": _whole("AyaVision", _text("cohere2", model_type="cohere2", logit_scale=1.0),
        {**_SIGLIP, "model_type": "siglip_vision_model"}, image_token_index=190),
    "pixtral": _whole("Llava", _text("mistral", head_dim=16, model_type="mistral"),
        {**_SIGLIP, "model_type": "pixtral"}, image_token_index=190, vision_feature_layer=-1,
        vision_feature_select_strategy="full"),
    "llama4": _whole("Llama4", {**_text("llama4"), "model_type": "llama4_text"},
        {**_SIGLIP, "model_type": "llama4_vision_model", "intermediate_size": 128,
         "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
         "pixel_shuffle_ratio": 0.5},
        image_token_index=190, boi_token_index=191, eoi_token_index=192),
    "ministral3": _whole("Mistral3", _text(
        "ministral3", head_dim=16, model_type="ministral3", rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 16}),
        {**_SIGLIP, "model_type": "pixtral"}, image_token_index=190),
    "qwen2_vl": _whole("Qwen2VL", _text("qwen2", rope_parameters=_mrope(2, 3, 3)),
        _QWEN_VISION, **_IDS),
    "qwen2_5_vl": _whole("Qwen2_5_VL", _text("qwen2", rope_parameters=_mrope(2, 3, 3)),
        _QWEN25_VISION, **_IDS),
    "qwen3_vl": _whole("Qwen3VL", _text("qwen3", rope_parameters=_mrope(4, 4, 4)),
        _QWEN3_VISION, **_IDS),
    "qwen3_vl_moe": _whole("Qwen3VLMoe", _text("qwen3_moe", rope_parameters=_mrope(4, 4, 4)),
        _QWEN3_VISION, **_IDS),
    "qwen3_5": _whole("Qwen3_5", _text("qwen3_5", rope_parameters=_mrope(1, 1, 1, fraction=0.25)),
        _QWEN35_VISION, **_IDS),
    "qwen3_5_moe": _whole("Qwen3_5Moe", _text("qwen3_5_moe", rope_parameters=_mrope(
        1, 1, 1, fraction=0.25)), _QWEN35_VISION, **_IDS),
    "qwen2_audio": _whole("Qwen2Audio", _text("qwen2", model_type="qwen2"),
        {**_AUDIO, "model_type": "qwen2_audio_encoder"}, audio_token_index=190),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_the_text_part_gives_logits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    oracle = Oracle(WHOLE[name], seed=3)
    oracle.save(tmp_path)
    if name == "qwen3_vl_moe":
        turn_experts(tmp_path)

    with warnings.catch_warnings():
        warnings.simplefilter("error", TowerNotUsed)
        model = Model(tmp_path)
    runner = model.on("cpu")
    runner.prefill(1, prompt(40), chunk=16)

    reader = model.checkpoint.reader
    check(model.decoder, {each: reader.shape(each) for each in reader.names})
    assert model.decoder.towers
    assert deviation(runner.logits(1), oracle.logits(prompt(40))) < tolerance_of(name)


def test_gemma3_as_published_leaves_most_of_its_text_model_to_the_class() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }
    transformers = pytest.importorskip("transformers", minversion="5.0")
    made = transformers.Gemma3TextConfig.from_dict(dict(config["text_config"]))
    whole = {**json.loads(made.to_json_string(use_diff=False))}

    decoder = _decoder(config)

    assert decoder == _decoder({**config, "text_config": whole})
    assert (decoder.hidden, decoder.vocab, len(decoder.layers)) == (2560, 262208, 34)


@pytest.mark.parametrize(
    "name", ["Gemma3ForConditionalGeneration", "Mistral3ForConditionalGeneration"]
)
def test_another_text_model_in_it_is_refused(name: str) -> None:
    config = {"architectures": [name], "text_config": {"model_type": "llama"}}

    with pytest.raises(SpecError, match=r"model_type: config\.json says 'llama'"):
        resolve(find(config), config)


def test_whether_the_head_is_tied_may_be_said_for_the_whole_model() -> None:
    family = WHOLE["qwen2_vl"]
    config = family.config_json()
    text = config["text_config"]

    for within, beside in ((False, True), (True, False), (True, True), (False, False)):
        config["text_config"] = {**text, "tie_word_embeddings": within}
        config["tie_word_embeddings"] = beside
        assert _decoder(config).head.tied == (within or beside)


def _decoder(config: Mapping[str, Any]) -> Decoder:
    """Return the text model, with its tower or without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TowerNotUsed)
        return resolve(find(config), config)
