"""What keys and values in 8 and 4 bits do to the bundled model's next-token distributions.

In float64, by the definitions of spaninfer_op_reference: conversations that the model itself wrote
are read again with quantised keys and values. One JSON record per format on standard output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import spaninfer_demo
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer import Engine, SamplingParams
from spaninfer_engine.load import open_checkpoint

Array = NDArray[Any]
Codec = Callable[[Array], Array]

REQUESTS = (
    "Tell me a fable about a fox and a crane.",
    "Write a letter from a pirate to his grandmother.",
    "Tell me a story about a robot who was lonely.",
    "Write a long story in chapters about a river and a kite.",
)


def through_fp8(x: Array) -> Array:
    """Return x[T K D] as it comes back from fp8."""
    codes, scale = definition.quantize_fp8(x.astype(np.float32))
    return (codes * scale).astype(np.float64)


def through(codes: definition.CodeRange) -> Codec:
    """Return what makes x[T K D] come back from int8 or uint4."""
    return lambda x: np.float64(definition.quantize_cache(x.astype(np.float32), codes).dequantize())


FORMATS: dict[str, Codec] = {
    "int8": through(definition.CodeRange.INT8),
    "fp8": through_fp8,
    "uint4": through(definition.CodeRange.UINT4),
}


def conversations() -> list[Array]:
    """Return the token ids of each request and of what the model answers."""
    texts = []
    with Engine("demo") as engine:
        for seed, request in enumerate(REQUESTS):
            prompt_ids = list(engine.encode_chat([{"role": "user", "content": request}]))
            _, queue = engine.start_request(prompt_ids, SamplingParams(max_tokens=700, seed=seed))
            answer_ids = [token for output in queue for token in output.token_ids]
            texts.append(np.array(prompt_ids + answer_ids))
    return texts


class Model:
    """The bundled model (Qwen3) in float64, by definition."""

    def __init__(self) -> None:
        folder = spaninfer_demo.path()
        self.config = json.loads((folder / "config.json").read_text())
        with open_checkpoint(folder) as checkpoint:
            read = checkpoint.reader.read
            self.weights = {name: np.float64(read(name)) for name in checkpoint.reader.names}

    def log_probabilities(self, token_ids: Array, codec: Codec) -> Array:
        """Return [T V] with keys and values that went through `codec`."""
        table = self.weights["model.embed_tokens.weight"]
        x = table[token_ids]
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self._attention(x, f"model.layers.{layer}.", codec)
            x = x + self._mlp(x, f"model.layers.{layer}.")
        return definition.log_softmax(self._norm(x, "model.norm") @ table.T)

    def _attention(self, x: Array, place: str, codec: Codec) -> Array:
        size, positions = self.config["head_dim"], np.arange(len(x))
        h = self._norm(x, f"{place}input_layernorm")
        query, key, value = (
            self._linear(h, f"{place}self_attn.{name}_proj").reshape(len(x), -1, size)
            for name in "qkv"
        )
        inverse = self.config["rope_theta"] ** (-np.arange(0, size, 2) / size)
        angles = definition.cos_sin(positions, inverse)
        query = definition.rotate(self._norm(query, f"{place}self_attn.q_norm"), *angles)
        key = definition.rotate(self._norm(key, f"{place}self_attn.k_norm"), *angles)
        places = (positions, positions)
        y = definition.attend(query, codec(key), codec(value), *places, scale=size**-0.5)
        return self._linear(y.reshape(len(x), -1), f"{place}self_attn.o_proj")

    def _mlp(self, x: Array, place: str) -> Array:
        h = self._norm(x, f"{place}post_attention_layernorm")
        gate, up = (self._linear(h, f"{place}mlp.{name}_proj") for name in ("gate", "up"))
        return self._linear(definition.gated(gate, up, "silu"), f"{place}mlp.down_proj")

    def _norm(self, x: Array, name: str) -> Array:
        weight = self.weights[f"{name}.weight"]
        return definition.rms_norm(x, weight, self.config["rms_norm_eps"])

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T


def main() -> None:
    """Print the divergence of each format."""
    model, texts = Model(), conversations()
    exact = [model.log_probabilities(text, lambda x: x) for text in texts]
    for name, codec in FORMATS.items():
        coded = [model.log_probabilities(text, codec) for text in texts]
        pairs = list(zip(exact, coded, strict=True))
        divergence = np.concatenate([(np.exp(p) * (p - q)).sum(-1) for p, q in pairs])
        same = np.concatenate([p.argmax(-1) == q.argmax(-1) for p, q in pairs])
        figures = {
            "positions": len(divergence),
            "mean_kl": float(divergence.mean()),
            "p99_kl": float(np.quantile(divergence, 0.99)),
            "same_token": float(same.mean()),
        }
        print(json.dumps({"format": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
