"""Towers of specs: present, refused, or left out with a warning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from media_models import HEARING, SIGHTS
from spaninfer_engine.errors import CheckpointError, SpecError
from spaninfer_engine.spec import Decoder, TowerNotUsed, check, find, load, resolve, weights
from spaninfer_engine.spec.tower_nodes import AudioTower, PatchTower, Resampler, Square
from spaninfer_engine.spec.tree import parameter_count
from tile_models import TILED

PUBLISHED_VISION = {  # of Qwen2-VL-7B, as its file says it
    "depth": 32, "embed_dim": 1280, "hidden_size": 64, "in_chans": 3, "in_channels": 3,
    "mlp_ratio": 4, "model_type": "qwen2_vl", "num_heads": 16, "patch_size": 14,
    "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
}  # fmt: skip


def config_of(name: str, **changed: Any) -> dict[str, Any]:
    key = "audio_config" if name == "qwen2_audio" else "vision_config"
    config = {**SIGHTS, **TILED, "qwen2_audio": HEARING}[name].family.config_json()
    return {**config, key: {**config[key], **changed}}


def decoder_of(config: Mapping[str, Any], names: Any = None) -> Decoder:
    model = resolve(find(config), config, names)
    assert isinstance(model, Decoder)
    return model


def test_a_published_config_of_old_style_is_read_without_a_warning() -> None:
    config = {**config_of("qwen2_vl"), "vision_config": PUBLISHED_VISION}

    (tower,) = decoder_of(config).towers

    assert isinstance(tower, PatchTower)
    assert (tower.hidden, len(tower.layers), tower.numbers, tower.merge) == (1280, 32, 1176, 2)
    assert sum(weight.name.endswith("mlp.fc1.weight") for weight in weights(tower)) == 32


def test_tokens_that_stand_for_media_are_said() -> None:
    media = decoder_of(config_of("qwen3_vl")).media

    assert media is not None
    assert (media.image, media.video, media.start, media.end) == (190, 191, 192, 193)
    assert media.frames_apart
    assert decoder_of(config_of("qwen2_audio")).media.audio == 190  # type: ignore[union-attr]


def test_images_that_are_seen_whole_are_said_with_the_text_around_them() -> None:
    media = decoder_of(config_of("gemma3_vl")).media

    assert media is not None
    assert (media.image, media.start, media.end, media.around) == (190, 191, 192, "\n\n")
    assert media.bidirectional
    assert not decoder_of(config_of("llava_onevision")).media.bidirectional  # type: ignore[union-attr]


def test_a_published_tower_of_gemma_3_makes_256_rows_of_64_squared_patches() -> None:
    vision = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
              "model_type": "siglip_vision_model", "num_attention_heads": 16,
              "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}  # fmt: skip
    config = {**config_of("gemma3_vl"), "vision_config": vision, "mm_tokens_per_image": 256}

    (tower,) = decoder_of(config).towers

    assert isinstance(tower, PatchTower)
    assert (tower.tile, tower.merge, tower.merger.count, tower.kinds) == (64, 4, 16, ("image",))


AGES = (
    ("vision_tower.vision_model.", ""),  # as published
    ("vision_tower.", ""),  # as transformers 5 writes them
    ("model.vision_tower.", "model."),
)


@pytest.mark.parametrize(
    ("name", "tower", "rest"),
    [
        *((name, *age) for name in ("gemma3_vl", "llava_onevision") for age in AGES),
        *(("mistral3", *age) for age in AGES[1:]),
    ],
)
def test_names_of_every_age_are_found(name: str, tower: str, rest: str) -> None:
    config = config_of(name)
    shapes = {weight.name: weight.shape for weight in weights(decoder_of(config))}
    first = "vision_tower." if name == "mistral3" else AGES[0][0]
    stored = {
        tower + each.removeprefix(first) if each.startswith(first) else _under(each, rest): shape
        for each, shape in shapes.items()
    }
    more = {} if name == "mistral3" else {f"{tower}head.probe": (1, 1, 48)}

    found = decoder_of(config, {*stored, *more})

    check(found, {**stored, **more})
    assert len({weight.name for weight in weights(found.towers)} & stored.keys()) > 30


def _under(name: str, rest: str) -> str:
    if not rest:
        return name
    if name.startswith("language_model.model."):
        return "model.language_model." + name.removeprefix("language_model.model.")
    return rest + name if name.startswith(("multi_modal", "image_newline")) else name


def test_windows_are_in_patches_and_layers_know_theirs() -> None:
    (tower,) = decoder_of(config_of("qwen2_5_vl")).towers

    assert isinstance(tower, PatchTower)
    assert tower.window == 4
    assert [layer.attention.in_windows for layer in tower.layers] == [True, False] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("qwen2_vl", {"patch_size": 0}, "patch: .*from 1 to 4096, got 0"),
        ("qwen2_vl", {"patch_size": [4, 6]}, "patch: .*expected a square's side"),
        ("qwen2_vl", {"num_heads": 5}, "heads: .*64 channels do not make 5 heads"),
        ("qwen2_vl", {"num_heads": 32}, "heads: .*heads of 2 channels cannot turn"),
        ("qwen2_vl", {"hidden_size": 96}, "rows of the tower have 96 channels; the decoder has 64"),
        ("qwen2_vl", {"spatial_merge_size": 1000}, "merge: .*from 1 to 64"),
        ("qwen2_vl", {"depth": 10**9}, "layers: .*from 1 to 1000"),
        ("qwen2_vl", {"mlp_ratio": 0.01}, "ffn: .*expected an integer"),
        ("qwen2_vl", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type: .*'yarn'"),
        ("qwen2_vl", {"attention_bias": False, "head_dim": 80}, "head_dim: .*changes the mathem"),
        ("qwen2_5_vl", {"window_size": 7}, "window: .*7 pixels hold no 2 patches of 4"),
        ("qwen2_5_vl", {"fullatt_block_indexes": [4]}, "full_layers: .*not all layers of 0 to 3"),
        ("qwen3_vl", {"num_position_embeddings": 35}, "pos_table: .*35 rows are no square"),
        ("qwen3_vl", {"deepstack_visual_indexes": [2, 0]}, "deepstack: .*do not ascend"),
        ("qwen3_vl", {"deepstack_visual_indexes": [0, 1, 2, 3]}, "4 deepstack rows join 3 layers"),
        ("mistral3", {"patch_size": 0}, "patch: .*from 1 to 4096, got 0"),
        ("mistral3", {"num_attention_heads": 32}, "heads: .*heads of 2 channels cannot turn"),
        ("mistral3", {"num_attention_heads": 7}, "heads: .*64 channels do not make 7 heads"),
        ("mistral3", {"hidden_act": "gelu_cubed"}, "act: .*expected one of"),
        ("mistral3", {"model_type": "clip_vision_model"}, "model_type: .*'clip_vision_model'"),
        ("mistral3", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type: .*'yarn'"),
        ("qwen3_5_vl", {"deepstack_visual_indexes": [1]}, r"says \(1,\); implemented is \(\)"),
        ("qwen3_5_vl", {"num_position_embeddings": 35}, "pos_table: .*35 rows are no square"),
        ("llava", {"model_type": "siglip_vision_model"}, "model_type: .*'siglip_vision_model'"),
        ("llava", {"vision_feature_layer": -4}, "output_layer: .*-4 is no layer of 3"),
        ("llava", {"vision_feature_layer": 4}, "output_layer: .*4 is no layer of 3"),
        ("llava", {"vision_feature_select_strategy": "full"}, "strategy: .*says 'full'"),
        ("llama4_vl", {"image_size": 3}, "tile: .*3 pixels hold no patch of 4"),
        ("llama4_vl", {"image_size": 36}, "tiles of 9 patches and 1 frame make no rows of 2"),
        ("llama4_vl", {"pixel_shuffle_ratio": 0.25}, "pixel_shuffle_ratio: .*says 0.25"),
        ("llama4_vl", {"num_attention_heads": 24}, "heads: .*heads of 2 channels cannot turn"),
        ("llama4_vl", {"projector_output_dim": 0}, "merger_out: .*from 1"),
        ("llama4_vl", {"hidden_act": "silu"}, "hidden_act: .*says 'silu'"),
        ("llama4_vl", {"multi_modal_projector_bias": True}, "projector_bias: .*says True"),
        ("gemma3_vl", {"image_size": 3}, "tile: .*3 pixels hold no patch of 4"),
        ("gemma3_vl", {"image_size": 36}, "tile_tokens: .*4 .*no square that divides a tile of 9"),
        ("gemma3_vl", {"image_size": 10**6}, "tile: .*from 1 to 16384"),
        ("gemma3_vl", {"num_attention_heads": 7}, "heads: .*48 channels do not make 7 heads"),
        ("llava_onevision", {"patch_size": 0}, "patch: .*from 1 to 4096, got 0"),
        ("llava_onevision", {"hidden_act": "gelu_cubed"}, "act: .*expected one of"),
        ("llava_onevision", {"model_type": "clip_vision_model"}, "model_type: .*'clip_vision_mod"),
        ("qwen2_audio", {"max_source_positions": 1}, "2 of 1 rows make a token"),
        ("qwen2_audio", {"num_mel_bins": -1}, "mels: .*from 1 to 4096, got -1"),
        ("qwen2_audio", {"encoder_attention_heads": 7}, "64 channels do not make 7 heads"),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(
    name: str, changed: dict[str, Any], told: str
) -> None:
    config = config_of(name, **changed)

    with pytest.raises(SpecError, match=told):
        resolve(find(config), config)


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("gemma3_vl", {"mm_tokens_per_image": 5}, "tile_tokens: .*5 tokens are no square"),
        ("gemma3_vl", {"mm_tokens_per_image": 0}, "tile_tokens: .*from 1 to"),
        ("mistral3", {"spatial_merge_size": 0}, "merge: .*from 1 to 64, got 0"),
        ("mistral3", {"vision_feature_layer": -2}, "vision_feature_layer: .*says -2"),
        ("mistral3", {"projector_hidden_act": "silu"}, "projector_hidden_act: .*'silu'"),
        ("llava_onevision", {"vision_feature_layer": -2}, "vision_feature_layer: .*says -2"),
        ("llava_onevision", {"projector_hidden_act": "silu"}, "projector_hidden_act: .*'silu'"),
        ("llava_onevision", {"vision_feature_select_strategy": "default"}, "implemented is 'full'"),
    ],
)
def test_keys_beside_the_towers_config_are_read_as_if_in_it(
    name: str, changed: dict[str, Any], told: str
) -> None:
    config = {**config_of(name), **changed}

    with pytest.raises(SpecError, match=told):
        resolve(find(config), config)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_audio", "gemma3_vl", "qwen3_5_vl", "mistral3"])
def test_without_a_config_of_the_tower_the_text_model_remains(name: str) -> None:
    config = {
        k: v for k, v in config_of(name).items() if k not in ("vision_config", "audio_config")
    }

    with pytest.warns(TowerNotUsed, match="config.json has no (vision|audio)_config.*text alone"):
        model = decoder_of(config)

    assert model.towers == ()


def test_a_spec_that_describes_no_tower_is_for_text(tmp_path: Path) -> None:
    config = config_of("qwen2_vl")
    file = tmp_path / "mine.toml"
    file.write_text('inherits = "qwen2"\nkind = "vlm"\ntext = ["text_config"]\n')

    with pytest.warns(TowerNotUsed, match="describes no tower; the model is loaded for text alone"):
        model: Any = resolve(load(file), config)

    assert model.towers == ()


def test_a_checkpoint_saved_without_its_tower_is_a_text_model() -> None:
    config = config_of("qwen2_vl")
    whole = decoder_of(config)
    shapes = {weight.name: weight.shape for weight in weights(whole)}
    text = {name: shape for name, shape in shapes.items() if not name.startswith("visual.")}

    with pytest.warns(TowerNotUsed, match="holds no weights of its tower"):
        model = decoder_of(config, text)

    assert 0 < len(text) < len(shapes)
    check(model, text)


@pytest.mark.parametrize(
    "name",
    [
        "qwen2_vl",
        "qwen3_vl",
        "qwen3_5_vl",
        "mistral3",
        "qwen2_audio",
        "gemma3_vl",
        "llava_onevision",
    ],
)
def test_tensors_of_a_tower_are_checked_like_a_decoders(name: str) -> None:
    config = config_of(name)
    decoder = decoder_of(config)
    shapes = {weight.name: weight.shape for weight in weights(decoder)}
    first = next(weight.name for weight in weights(decoder.towers))
    assert isinstance(decoder.towers[0], AudioTower | PatchTower)

    check(decoder_of(config, shapes), shapes)

    for wrong in (
        {name: shape for name, shape in shapes.items() if name != "visual.merger.ln_q.bias"
         and not name.endswith(("norm1.bias", "layer_norm.bias", "layer_norm2.bias",
                                    "ffn_norm.weight"))},
        {**shapes, first: (1, *shapes[first])},
        {**shapes, f"{first}.more": (1,)},
    ):  # fmt: skip
        with pytest.raises(CheckpointError):
            check(decoder_of(config, shapes), wrong)


# ---- Qwen-VL and Qwen-Audio of 2023 --------------------------------------------------------------

FIRST = {  # of both config.json, as published
    "architectures": ["QWenLMHeadModel"], "attn_dropout_prob": 0.0, "bf16": False, "fp16": True,
    "emb_dropout_prob": 0.0, "fp32": False, "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 22016, "kv_channels": 128, "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 8192, "model_type": "qwen", "no_bias": True, "onnx_safe": None,
    "num_attention_heads": 32, "num_hidden_layers": 32, "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 2048,
    "tie_word_embeddings": False, "tokenizer_type": "QWenTokenizer", "use_cache": True,
    "use_dynamic_ntk": True, "use_logn_attn": True,
}  # fmt: skip
FIRST_VL = {**FIRST, "use_flash_attn": "auto", "vocab_size": 151936, "visual": {
    "heads": 16, "image_size": 448, "image_start_id": 151857, "layers": 48, "mlp_ratio": 4.9231,
    "output_dim": 4096, "patch_size": 14, "width": 1664}}  # fmt: skip
FIRST_AUDIO = {**FIRST, "vocab_size": 155947, "audio": {
    "n_mels": 80, "n_ctx": 1500, "n_state": 1280, "n_head": 20, "n_layer": 32, "output_dim": 4096,
    "avg_pool": True, "add_audio_bos_eos_token": True, "audio_start_id": 155163}}  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_the_published_tower_of_qwen_vl_is_read_without_a_warning() -> None:
    decoder = decoder_of(FIRST_VL)
    (tower,) = decoder.towers

    assert isinstance(tower, PatchTower)
    assert isinstance(tower.merger, Resampler)
    assert (tower.tile, tower.rows_of(1024), tower.merger.heads) == (32, 256, 32)
    assert tower.squares == (Square(16, "bicubic"),)
    media = decoder.media
    assert media is not None
    assert (media.start, media.end, media.image) == (151857, 151858, 151859)
    # Bai et al. 2023, table 1: 7.7B of text, 1.9B of the tower, 0.08B between.
    assert [round(parameter_count(part) / 1e7) for part in (tower.layers, tower.merger)] == [184, 9]
    assert round(parameter_count(decoder) / 1e8) == 97


@pytest.mark.filterwarnings("error")
def test_the_published_tower_of_qwen_audio_is_read_without_a_warning() -> None:
    decoder = decoder_of(FIRST_AUDIO)
    (tower,) = decoder.towers

    assert isinstance(tower, AudioTower)
    assert (tower.mels, tower.max_rows, tower.pool, len(tower.layers)) == (80, 1500, 2, 32)
    assert tower.extra is not None
    assert tower.extra.shape == (2, 4096)
    media = decoder.media
    assert media is not None
    assert (media.start, media.end, media.audio) == (155163, 155164, 151851)
    assert media.replaces_marks
    assert round(parameter_count(tower) / 1e7) == 64  # Chu et al. 2023, section 3.1: 640M


@pytest.mark.parametrize(
    ("config", "key", "value", "reason"),
    [
        (FIRST_VL, "n_queries", 200, "200 is no square"),
        (FIRST_VL, "output_dim", 100, "merger_heads"),
        (FIRST_VL, "image_size", 13, "13 pixels hold no patch"),
        (FIRST_AUDIO, "avg_pool", False, "avg_pool"),
        (FIRST_AUDIO, "audio_start_id", 3000, "audio_token"),
    ],
)
def test_towers_of_2023_that_are_not_built_are_refused_by_their_key(
    config: Mapping[str, Any], key: str, value: Any, reason: str
) -> None:
    tower = "visual" if "visual" in config else "audio"

    with pytest.raises(SpecError, match=reason):
        decoder_of({**config, tower: {**config[tower], key: value}})
