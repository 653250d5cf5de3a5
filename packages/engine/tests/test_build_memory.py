"""What building a model takes of memory that no other process shares, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

HIDDEN, INNER, VOCAB = 512, 1536, 4096

# Prints by how many bytes the memory of its own grew, at the most, while the second model was
# built: with the first, libraries and compilers have come.
BUILDING = """
import sys
from threading import Event, Thread
from spaninfer_engine import EngineConfig
from spaninfer_engine.build import build

def private_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def built(folder):
    return build(EngineConfig(model=folder, backend=backend, device="cpu", memory=1 << 22))

def watch():
    while not done.wait(0.001):
        seen.append(private_bytes())

backend, small, large = sys.argv[1:]
built(small).runner.close()
done, seen = Event(), [private_bytes()]
watcher = Thread(target=watch)
watcher.start()
parts = built(large)
done.set()
watcher.join()
print(max(seen) - seen[0])
"""


def write_model(folder: Path, layers: int, dtype: type) -> int:
    """Write a Llama of random weights; return how many numbers they are."""
    rng = np.random.default_rng(layers)
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        shapes |= {
            f"{name}self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "o")
        }
        shapes |= {f"{name}mlp.{part}_proj.weight": (INNER, HIDDEN) for part in ("gate", "up")}
        shapes[f"{name}mlp.down_proj.weight"] = (HIDDEN, INNER)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}{norm}.weight"] = (HIDDEN,)
    weights: dict[str, NDArray[np.generic]] = {
        name: rng.standard_normal(shape, np.float32).astype(dtype) for name, shape in shapes.items()
    }
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": np.dtype(dtype).name,
    }
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(WordLevel({"a": 0, "<unk>": 1}, "<unk>")).save(str(folder / "tokenizer.json"))
    return sum(array.size for array in weights.values())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's accounts")
@pytest.mark.parametrize(
    ("backend", "dtype", "item_bytes"),
    [
        ("cpu", np.float32, 4),
        ("cpu", bfloat16, 4),
        ("torch", np.float32, 4),
        ("torch", bfloat16, 2),
    ],
)
def test_building_takes_little_more_than_the_weights_in_the_type_they_are_computed_in(
    tmp_path: Path, backend: str, dtype: type, item_bytes: int
):
    write_model(tmp_path / "small", 1, dtype)
    num_weights = write_model(tmp_path / "large", 12, dtype)

    done = subprocess.run(
        [sys.executable, "-c", BUILDING, backend, tmp_path / "small", tmp_path / "large"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 1.15 * num_weights * item_bytes + (4 << 20)  # and the spans
