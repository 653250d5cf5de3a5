"""A model that costs nearly nothing: one narrow layer with random weights, and bytes as tokens.

What is left of a request's time and CPU time is the server's and the engine's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

NAME: Final = "mock"
CONFIG: Final[Mapping[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 32,
    "head_dim": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e5,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 257,
    "eos_token_id": 256,
}
END: Final = "<|end|>"
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@contextmanager
def mock_folder() -> Iterator[Path]:
    """Give a folder with the model."""
    with TemporaryDirectory() as home:
        folder = Path(home, NAME)
        folder.mkdir()
        words = _tokenizer()
        letters = [words.get_vocab()[letter] for letter in ascii_lowercase]
        (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        words.save(str(folder / "tokenizer.json"))
        template = json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": END})
        (folder / "tokenizer_config.json").write_text(template, encoding="utf-8")
        (folder / "model.safetensors").write_bytes(_safetensors(_weights(letters)))
        yield folder


def _weights(letters: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    width, vocab = CONFIG["hidden_size"], CONFIG["vocab_size"]
    head, inner = CONFIG["head_dim"], CONFIG["intermediate_size"]
    matrices = {
        "self_attn.q_proj": (head, width),
        "self_attn.k_proj": (head, width),
        "self_attn.v_proj": (head, width),
        "self_attn.o_proj": (width, head),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    norms = {
        "input_layernorm": width,
        "post_attention_layernorm": width,
        "self_attn.q_norm": head,
        "self_attn.k_norm": head,
    }
    random = np.random.default_rng(0)
    words = random.standard_normal((vocab, width), np.float32)
    words[letters] *= 1e3  # so that each token of an answer is a character
    return {
        "model.embed_tokens.weight": words,
        "model.norm.weight": np.ones(width, np.float32),
        **{
            f"model.layers.0.{name}.weight": random.standard_normal(shape, np.float32)
            / shape[1] ** 0.5
            for name, shape in matrices.items()
        },
        **{
            f"model.layers.0.{name}.weight": np.ones(size, np.float32)
            for name, size in norms.items()
        },
    }


def _tokenizer() -> Tokenizer:
    """Return byte-level BPE without merges."""
    letters = sorted(ByteLevel.alphabet())
    words = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    words.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = ByteLevelDecoder()
    words.add_special_tokens([END])
    return words


def _safetensors(arrays: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return a file of float32 arrays: the length of its head, the head as JSON, the data."""
    head: dict[str, Any] = {}
    begin = 0
    for name, array in arrays.items():
        end = begin + 4 * prod(array.shape)
        head[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [begin, end]}
        begin = end
    said = json.dumps(head).encode()
    data = [np.ascontiguousarray(array, "<f4").tobytes() for array in arrays.values()]
    return b"".join([len(said).to_bytes(8, "little"), said, *data])
