"""The model folder in Hugging Face's layout: weights, configuration, tokenizer, chat template."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from corpus import END_OF_TEXT, TURN_END, TURN_START
from model import Qwen3, Shape
from safetensors.torch import save_file

# Markers stand around every turn; a role is one of system, user, assistant.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_END_OF_TEXT_ID, _TURN_START_ID, _TURN_END_ID = 0, 1, 2  # in vocabulary.py's order


def export_weights(model: Qwen3, folder: Path) -> None:
    """Write model.safetensors in bfloat16; the tied head is not stored."""
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def export_settings(tokenizer: Path, folder: Path) -> None:
    """Write everything but the weights."""
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    _write(folder / "config.json", _config(Shape()))
    _write(folder / "tokenizer_config.json", _tokenizer_config(Shape()))
    _write(folder / "generation_config.json", _generation_config())


def _config(shape: Shape) -> dict[str, object]:
    sizes = asdict(shape)
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": _TURN_END_ID,
        "head_dim": sizes["head_size"],
        "hidden_act": "silu",
        "hidden_size": sizes["hidden"],
        "initializer_range": 0.02,
        "intermediate_size": sizes["ffn"],
        "max_position_embeddings": sizes["max_len"],
        "model_type": "qwen3",
        "num_attention_heads": sizes["heads"],
        "num_hidden_layers": sizes["layers"],
        "num_key_value_heads": sizes["kv_heads"],
        "pad_token_id": _END_OF_TEXT_ID,
        "rms_norm_eps": sizes["norm_eps"],
        "rope_scaling": None,
        "rope_theta": sizes["rope_theta"],
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": sizes["vocab_size"],
    }


def _tokenizer_config(shape: Shape) -> dict[str, object]:
    ids = {_END_OF_TEXT_ID: END_OF_TEXT, _TURN_START_ID: TURN_START, _TURN_END_ID: TURN_END}
    return {
        "add_bos_token": False,
        "added_tokens_decoder": {str(id_): _added(text) for id_, text in ids.items()},
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": shape.max_len,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def _added(text: str) -> dict[str, object]:
    return {
        "content": text,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }


def _generation_config() -> dict[str, object]:
    return {
        "do_sample": True,
        "eos_token_id": [_TURN_END_ID, _END_OF_TEXT_ID],
        "max_new_tokens": 512,  # a long story; what the model cannot answer would never end
        "pad_token_id": _END_OF_TEXT_ID,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
    }


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
