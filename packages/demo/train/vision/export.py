"""The model folder of the second stage, in the layout of published Qwen3-VL checkpoints."""

from pathlib import Path

import torch
from export import decoder_config, generation_config, tokenizer_config, write_json
from model import Shape
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer

from vision.conversations import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from vision.model import SECTIONS, Seeing, TowerShape

MARKS = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
_PIXELS = {"shortest_edge": 35_840, "longest_edge": 51_200}  # 35 to 50 tokens for a picture
_CLIP_PIXELS = {"shortest_edge": 50_000, "longest_edge": 102_400}  # of all frames together

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{- part['text'] -}}"
    "{%- elif part['type'] in ('image', 'image_url') -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part['type'] == 'video' -%}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def export_weights(model: Seeing, folder: Path) -> None:
    """Write model.safetensors in bfloat16, without the tied head and the probes."""
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if not name.startswith(("probes.", "cos", "sin"))
    }
    patch = "model.visual.patch_embed.proj.weight"
    weights[patch] = weights[patch].reshape(-1, 3, 2, 16, 16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def widen_tokenizer(source: Path, target: Path) -> None:
    """Write the first stage's tokenizer with the marks of pictures."""
    tokenizer = Tokenizer.from_file(str(source))
    tokenizer.add_special_tokens(
        [AddedToken(mark, special=True, normalized=False) for mark in MARKS]
    )
    tokenizer.save(str(target))


def export_settings(tokenizer: Path, shape: Shape, tower: TowerShape, folder: Path) -> None:
    """Write everything but the weights; `tokenizer` is a widened one."""
    ids = Tokenizer.from_file(str(tokenizer))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    write_json(folder / "config.json", _config(shape, tower, ids))
    write_json(folder / "tokenizer_config.json", tokenizer_config(shape, tokenizer, CHAT_TEMPLATE))
    write_json(folder / "generation_config.json", generation_config())
    write_json(folder / "preprocessor_config.json", _pictures())
    write_json(folder / "video_preprocessor_config.json", _clips())


def _config(shape: Shape, tower: TowerShape, tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": tokenizer.token_to_id(IMAGE_PAD),
        "model_type": "qwen3_vl",
        "text_config": {
            **decoder_config(shape),
            "dtype": "bfloat16",
            "model_type": "qwen3_vl_text",
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": list(SECTIONS),
                "rope_type": "default",
            },
        },
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "video_token_id": tokenizer.token_to_id(VIDEO_PAD),
        "vision_config": {
            "deepstack_visual_indexes": [tower.deep],
            "depth": tower.layers,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": tower.hidden,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": tower.ffn,
            "model_type": "qwen3_vl",
            "num_heads": tower.heads,
            "num_position_embeddings": tower.side**2,
            "out_hidden_size": tower.out,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": tokenizer.token_to_id(VISION_END),
        "vision_start_token_id": tokenizer.token_to_id(VISION_START),
    }


def _pictures() -> dict[str, object]:
    return {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        "patch_size": 16,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": _PIXELS,
        "temporal_patch_size": 2,
    }


def _clips() -> dict[str, object]:
    return {
        **_pictures(),
        "fps": 2,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "max_frames": 8,
        "min_frames": 4,
        "size": _CLIP_PIXELS,
        "video_processor_type": "Qwen3VLVideoProcessor",
    }
