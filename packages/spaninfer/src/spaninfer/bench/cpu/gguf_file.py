"""A Qwen2 or Qwen3 model in a GGUF file, for llama.cpp: weights of a checkpoint, or random ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from numpy.typing import NDArray

from spaninfer.bench.cpu.formats import PeerFormat

Read = Callable[[str], NDArray[np.float32]]
"""Returns a tensor by its name in a checkpoint."""

_ROWS_DRAWN = 64  # of a matrix; the others repeat them, which no kernel notices
_FILE_TYPES: Final[Mapping[PeerFormat, str]] = {
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
    "Q4_0": "MOSTLY_Q4_0",
    "Q4_K": "MOSTLY_Q4_K_S",
    "Q5_K": "MOSTLY_Q5_K_S",
    "Q6_K": "MOSTLY_Q6_K",
    "IQ4_XS": "MOSTLY_IQ4_XS",
}
_SCALES_AT: Final[Mapping[PeerFormat, tuple[int, ...]]] = {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
}
"""Where a block has its float16 scales, of types that the gguf package does not quantise into."""
_STEPS: Final = 256.0  # between scales of such blocks and the numbers of a matrix, about


_STORED: Final[Mapping[str, str]] = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_gguf(
    path: Path, config: Mapping[str, Any], format: PeerFormat, read: Read | None = None
) -> None:
    """Write the model of a config.json, its head tied; weights are random unless `read` has them.

    All matrices are in `format`, the embedding that is the head too; norms and biases in float32.
    """
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[format]])
    _add_tokenizer(writer, config["vocab_size"])
    kind = gguf.GGMLQuantizationType[format]
    rng = np.random.default_rng(0)
    for name, shape in matrices(config):
        if read is None:
            codes = _random_codes(rng, shape, format)
        else:
            codes = gguf.quants.quantize(read(stored_name(name)), kind).view(np.uint8)
        writer.add_tensor(name, codes, raw_dtype=kind)
    for name, values in _vectors(config):
        writer.add_tensor(name, values if read is None else read(stored_name(name)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_name(name: str) -> str:
    """Return the name in a checkpoint of what GGUF calls `name`.

    >>> stored_name("blk.7.attn_q.bias"), stored_name("output_norm.weight")
    ('model.layers.7.self_attn.q_proj.bias', 'model.norm.weight')
    """
    *place, module, kind = name.split(".")
    layer = f"layers.{place[1]}." if place else ""
    return f"model.{layer}{_STORED[module]}.{kind}"


def matrices(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield name and shape (outputs, channels) of every matrix."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * _head_size(config)
    kv = config["num_key_value_heads"] * _head_size(config)
    yield "token_embd.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "attn_q": (query, hidden),
            "attn_k": (kv, hidden),
            "attn_v": (kv, hidden),
            "attn_output": (hidden, query),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }.items():
            yield f"blk.{layer}.{name}.weight", shape


def _vectors(config: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield norms (ones) and, of Qwen2, biases (zeros)."""
    hidden, size = config["hidden_size"], _head_size(config)
    query, kv = (size * config[f"num_{of}_heads"] for of in ("attention", "key_value"))
    yield "output_norm.weight", np.ones(hidden, np.float32)
    for layer in range(config["num_hidden_layers"]):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32)
        if config["model_type"] == "qwen3":
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"blk.{layer}.{name}.weight", np.ones(size, np.float32)
        else:
            for name, length in (("attn_q", query), ("attn_k", kv), ("attn_v", kv)):
                yield f"blk.{layer}.{name}.bias", np.zeros(length, np.float32)


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _random_codes(
    rng: np.random.Generator, shape: tuple[int, int], format: PeerFormat
) -> NDArray[np.uint8]:
    """Return a random matrix as the bytes of a format, [outputs, bytes of a row]."""
    outputs, channels = shape
    rows, size = min(outputs, _ROWS_DRAWN), np.float32(channels**-0.5)
    kind = gguf.GGMLQuantizationType[format]
    if format in _SCALES_AT:
        length, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        drawn = rng.integers(0, 256, (rows, channels // length, num_bytes)).astype(np.uint8)
        for at in _SCALES_AT[format]:
            drawn[..., at : at + 2] = np.array([size / _STEPS], np.float16).view(np.uint8)
        drawn = drawn.reshape(rows, -1)
    else:
        numbers = rng.standard_normal((rows, channels), np.float32) * size
        drawn = gguf.quants.quantize(numbers, kind).view(np.uint8)
    codes: NDArray[np.uint8] = np.resize(drawn, (outputs, drawn.shape[1]))
    return codes


def _add_tokenizer(writer: Any, vocab: int) -> None:
    """Add as many made-up tokens: llama.cpp loads no model without them."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    merged = ["t", "0"]  # of which the one merge makes a token
    writer.add_token_list([*merged, *(f"t{token}" for token in range(vocab - len(merged)))])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
