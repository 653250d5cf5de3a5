"""Published models by their sizes: with random weights, a config.json is a whole model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any, Final

from spaninfer_engine.tools import locate

_QWEN3: Final = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "attention_bias": False,
    "vocab_size": 151936,
}
_QWEN2: Final = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

# Of the bundled model's tokenizer, which `write_tokenizer` writes.
_PLACEHOLDERS: Final = {
    "vision_start_token_id": 4096,
    "vision_end_token_id": 4097,
    "image_token_id": 4098,
    "video_token_id": 4099,
}

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen2.5-0.5b": {
        **_QWEN2,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        **_QWEN2,
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        **_QWEN2,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "qwen2-vl-7b": {
        **_QWEN2,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": 3584,
            "in_chans": 3,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **_PLACEHOLDERS,
    },
    "qwen3-0.6b": {
        **_QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": {
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
        },
        "max_position_embeddings": 163840,
        "torch_dtype": "bfloat16",
        "bos_token_id": 100000,
        "eos_token_id": 100001,
        "attention_bias": False,
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 10944,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 102400,
        "tie_word_embeddings": False,
    },
}
"""What their makers published in config.json, as far as it decides what is computed."""


@contextmanager
def folder_of(shape: str) -> Iterator[Path]:
    """Give a model folder named after the shape, with a config.json and nothing else, at first."""
    with TemporaryDirectory() as home:
        folder = Path(home, shape)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(SHAPES[shape]), encoding="utf-8")
        yield folder


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write the bundled model's tokenizer, with made-up words for the tokens that it lacks.

    No text encodes to these; their answers hold five letters a token, as those of other models do.
    Raises ConfigError where no package brings that model.
    """
    bundled, _ = locate("demo")
    tokenizer = json.loads((bundled / _TOKENIZER).read_text(encoding="utf-8"))
    pieces: dict[str, int] = tokenizer["model"]["vocab"]
    words = (f"{_SPACE}{''.join(letters)}" for letters in product(ascii_lowercase, repeat=4))
    unknown = (word for word in words if word not in pieces)
    # The library numbers added tokens behind all others, unless the vocabulary has them.
    pieces |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    pieces |= dict(zip(unknown, range(len(pieces), vocab), strict=False))
    (folder / _TOKENIZER).write_text(json.dumps(tokenizer), encoding="utf-8")
    shutil.copy(bundled / _TOKENIZER_CONFIG, folder)


def write_processor(folder: Path) -> None:
    """Write what Qwen2-VL's folders say of pictures."""
    text = json.dumps(_QWEN2_VL_PICTURES)
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


_QWEN2_VL_PICTURES: Final = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 12_845_056,
}
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_SPACE = "\u0120"  # in the alphabet of bytes
