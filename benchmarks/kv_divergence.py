"""Divergence of the bundled model's next-token distributions under KV caches of 8 and 4 bits.

In float64, by the definitions of spaninfer_op_reference: answers that the model itself wrote are
read again with quantised keys and values. One JSON record per format on standard output. Beside
our formats are e4m3 codes with a fixed scale per layer, as checkpoints bring it along (`k_scale`,
`v_scale`): calibrated with the largest key and value of these very texts, or 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import spaninfer_demo
import spaninfer_op_reference as definition
from numpy.typing import NDArray
from spaninfer.bench.cpu.divergence import name_in_whole, texts
from spaninfer_engine.load import open_checkpoint
from weight_divergence import figures

Array = NDArray[Any]
Codec = Callable[[Array, str], Array]
"""What makes x[T K D] of a place, such as "3.key", come back from fewer bits."""


def through_fp8(x: Array, place: str) -> Array:  # noqa: ARG001
    """Return x[T K D] as it comes back from fp8."""
    codes, scale = definition.quantize_fp8(x.astype(np.float32))
    return (codes * scale).astype(np.float64)


def through(codes: definition.CodeRange) -> Codec:
    """Return what makes x[T K D] come back from int8 or uint4."""
    return lambda x, _: np.float64(
        definition.quantize_cache(x.astype(np.float32), codes).dequantize()
    )


class Largest:
    """A codec that changes nothing and remembers the largest size at each place."""

    def __init__(self) -> None:
        self.sizes: dict[str, float] = {}

    def __call__(self, x: Array, place: str) -> Array:
        """Return x[T K D]."""
        self.sizes[place] = max(self.sizes.get(place, 0.0), float(np.abs(x).max()))
        return x


def through_fixed(scale: Callable[[str], float]) -> Codec:
    """Return what makes x[T K D] come back from e4m3 codes with the fixed scale of a place."""

    def codec(x: Array, place: str) -> Array:
        codes = definition.to_e4m3((x / scale(place)).astype(np.float32))
        return np.float64(codes) * scale(place)

    return codec


FORMATS: dict[str, Codec] = {
    "int8": through(definition.CodeRange.INT8),
    "fp8": through_fp8,
    "uint4": through(definition.CodeRange.UINT4),
}


class Model:
    """The bundled model's decoder (Qwen3, as long as there is no picture) in float64."""

    def __init__(self) -> None:
        folder = spaninfer_demo.path()
        self.config = json.loads((folder / "config.json").read_text())["text_config"]
        with open_checkpoint(folder) as checkpoint:
            read = checkpoint.reader.read
            self.weights = {name: np.float64(read(name)) for name in checkpoint.reader.names}

    def log_probabilities(self, token_ids: Array, codec: Codec) -> Array:
        """Return [T V] with keys and values that went through `codec`."""
        table = self._weight("model.embed_tokens")
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
        layer = place.split(".")[-2]
        key, value = codec(key, f"{layer}.key"), codec(value, f"{layer}.value")
        y = definition.attend(query, key, value, *places, scale=size**-0.5)
        return self._linear(y.reshape(len(x), -1), f"{place}self_attn.o_proj")

    def _mlp(self, x: Array, place: str) -> Array:
        h = self._norm(x, f"{place}post_attention_layernorm")
        gate, up = (self._linear(h, f"{place}mlp.{name}_proj") for name in ("gate", "up"))
        return self._linear(definition.gated(gate, up, "silu"), f"{place}mlp.down_proj")

    def _norm(self, x: Array, name: str) -> Array:
        return definition.rms_norm(x, self._weight(name), self.config["rms_norm_eps"])

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self._weight(name).T

    def _weight(self, name: str) -> Array:
        return self.weights[name_in_whole(f"{name}.weight")]


def main() -> None:
    """Print the divergence of each format."""
    model, largest = Model(), Largest()
    read = [np.array(text) for text in texts()]
    exact = [model.log_probabilities(text, largest) for text in read]
    fixed = {
        "e4m3, calibrated scale per layer": through_fixed(
            lambda place: largest.sizes[place] / definition.E4M3_MOST
        ),
        "e4m3, scale 1": through_fixed(lambda _: 1.0),
    }
    for name, codec in (FORMATS | fixed).items():
        coded = [model.log_probabilities(text, codec) for text in read]
        about = {"benchmark": "kv divergence", "format": name}
        print(json.dumps(about | figures(exact, coded)), flush=True)


if __name__ == "__main__":
    main()
