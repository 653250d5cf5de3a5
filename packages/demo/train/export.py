"""The model folder in Hugging Face's layout: weights, configuration, tokenizer, chat template."""

import json
import shutil
from pathlib import Path

import torch
from corpus import END_OF_TEXT, TURN_END
from model import Qwen3, Shape
from safetensors.torch import save_file
from tokenizers import Tokenizer

# Markers stand around every turn; a role is one of system, user, assistant.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
_END_OF_TEXT_ID, _TURN_END_ID = 0, 2  # in vocabulary.py's order


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
    write_json(folder / "config.json", _config(Shape()))
    write_json(
        folder / "tokenizer_config.json", tokenizer_config(Shape(), tokenizer, CHAT_TEMPLATE)
    )
    write_json(folder / "generation_config.json", generation_config())


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        **decoder_config(shape),
    }


def decoder_config(shape: Shape) -> dict[str, object]:
    """Return what config.json says of the decoder, whether or not a tower stands before it."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": _TURN_END_ID,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_len,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": _END_OF_TEXT_ID,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def tokenizer_config(shape: Shape, tokenizer: Path, template: str) -> dict[str, object]:
    """Return tokenizer_config.json for a tokenizer and a chat template."""
    added = Tokenizer.from_file(str(tokenizer)).get_added_tokens_decoder()
    return {
        "add_bos_token": False,
        "added_tokens_decoder": {
            str(id_): _added(token.content) for id_, token in sorted(added.items())
        },
        "bos_token": None,
        "chat_template": template,
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


def generation_config() -> dict[str, object]:
    """Return how to sample."""
    return {
        "do_sample": True,
        "eos_token_id": [_TURN_END_ID, _END_OF_TEXT_ID],
        "max_new_tokens": 512,  # a long story; what the model cannot answer would never end
        "pad_token_id": _END_OF_TEXT_ID,
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
    }


def write_json(path: Path, value: dict[str, object]) -> None:
    """Write a readable file."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
