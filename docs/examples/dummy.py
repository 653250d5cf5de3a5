"""A model of random weights: a config.json is all there is of it."""

import json
from pathlib import Path

from spaninfer import Engine, SamplingParams

config = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 768,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}
folder = Path("sketch")
folder.mkdir()
(folder / "config.json").write_text(json.dumps(config))

with Engine(folder, weights="dummy") as engine:
    prompt = [17, 4, 1999]  # token ids: there is no tokenizer
    answer = engine.generate(prompt, SamplingParams(max_tokens=8, ignore_eos=True))
    print(answer.token_ids)
